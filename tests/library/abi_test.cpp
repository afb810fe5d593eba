// The layout of version 1 of the ABI: a program that was built with it must find everything in its place.
#include <cstddef>

#include "library_test.h"

namespace library_test {
namespace {

#define AT(type, field, offset) static_assert(offsetof(moeflux_##type, field) == (offset))

static_assert(MOEFLUX_ABI_VERSION == 1);
static_assert(sizeof(size_t) == 8 && sizeof(moeflux_token) == 4 && sizeof(moeflux_status) == 4);
AT(progress, what, 8);
AT(progress, total, 24);
AT(progress, ended, 36);
AT(open_options, backend, 8);
AT(open_options, ram_bytes, 40);
AT(open_options, vram_share, 56);
AT(open_options, ctx, 72);
AT(open_options, threads, 96);
AT(open_options, stripes, 104);
AT(open_options, user, 136);
AT(model_info, n_vocab, 8);
AT(model_info, ctx, 48);
AT(model_info, has_tokenizer, 80);
AT(model_info, family, 88);
AT(model_info, precision, 136);
AT(plan, resident_bytes, 8);
AT(plan, active_parameters, 112);
AT(stats, hits, 8);
AT(stats, stall_seconds, 40);
AT(stats, tokens, 104);
AT(chat, messages_json, 8);
AT(chat, no_answer, 32);
AT(bias, token, 8);
AT(chance, token, 8);
static_assert(sizeof(moeflux_bias) == 16 && sizeof(moeflux_chance) == 16);
AT(sampling, seed, 8);
AT(sampling, top_p, 32);
AT(sampling, penalty_window, 104);
AT(sampling, dry_breakers, 144);
AT(sampling, mirostat, 160);
AT(sampling, logit_bias, 184);
AT(sampling, n_banned, 208);
AT(context_options, n_sequences, 8);
AT(context_options, most_recompute, 32);
AT(batch, n_tokens, 8);
AT(batch, want_logits, 32);
AT(batch, cancel, 40);
AT(piece, text, 8);
AT(piece, has_token, 24);
AT(piece, logprob, 32);
AT(piece, n_top, 48);
AT(generate_options, sampling, 8);
AT(generate_options, whole_text, 36);
AT(generate_options, stop, 40);
AT(generate_options, continued, 72);
AT(generate_options, on_text, 88);
AT(generate_options, cancel, 112);
AT(generate_options, draft, 120);
AT(generate_options, draft_from, 128);
AT(result, text, 8);
AT(result, finish, 40);
AT(result, n_prompt, 56);
AT(result, bytes_read, 88);
AT(result, n_guessed, 96);
AT(result, n_right, 104);

#undef AT

TEST(LibraryAbi, TheLibraryIsTheHeadersVersion) { EXPECT_EQ(moeflux_abi_version(), MOEFLUX_ABI_VERSION); }

}  // namespace
}  // namespace library_test
