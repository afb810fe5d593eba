// Contexts: evaluation of batches, and the sequences themselves.
#include "api/context_state.h"
#include "api/handles.h"

namespace {

using namespace moeflux;
using namespace moeflux::api;

constexpr uint64_t kMostSequences = 1u << 20;

EvalRequest read_batch(ContextState& context, const moeflux_batch& batch) {
  const size_t most = context.n_sequences() * context.model().engine.plan().ctx;
  if (batch.n_tokens == 0) refuse("the batch has no tokens");
  if (batch.n_tokens > most)
    refuse("{} tokens are more than all sequences of the context hold: {}", batch.n_tokens, most);
  const uint64_t n_vocab = context.model().engine.config().n_vocab;
  EvalRequest request{
      .tokens = token_argument(batch.tokens, batch.n_tokens, "tokens"), .sequences = {}, .wanted = {}};
  request.sequences.assign(batch.n_tokens, 0);
  if (batch.sequences) request.sequences.assign(batch.sequences, batch.sequences + batch.n_tokens);
  request.wanted.assign(batch.n_tokens, false);
  std::vector<size_t> last(context.n_sequences(), batch.n_tokens);
  for (size_t i = 0; i < batch.n_tokens; ++i) {
    if (request.tokens[i] >= n_vocab)
      refuse("token {} is not in the vocabulary of {}", request.tokens[i], n_vocab);
    context.sequence(request.sequences[i]).check_usable();
    if (batch.want_logits) request.wanted[i] = batch.want_logits[i] != 0;
    last[request.sequences[i]] = i;
  }
  if (!batch.want_logits)
    for (const size_t i : last)
      if (i < batch.n_tokens) request.wanted[i] = true;
  return request;
}

HistoryOptions history_options(const moeflux_context_options& given) {
  HistoryOptions options;
  if (given.checkpoint_every) options.checkpoint_every = given.checkpoint_every;
  if (given.checkpoint_every == UINT64_MAX) options.checkpoint_every = 0;
  if (given.checkpoint_bytes) options.checkpoint_bytes = given.checkpoint_bytes;
  if (given.most_recompute) options.most_recompute = given.most_recompute;
  return options;
}

}  // namespace

moeflux_status moeflux_cancel_new(moeflux_cancel** cancel) {
  return call([&] {
    moeflux_cancel*& into = required(cancel, "cancel");
    into = make_handle<moeflux_cancel>(std::make_shared<CancelState>());
  });
}
moeflux_status moeflux_cancel_set(moeflux_cancel* cancel) {
  return call([&] { find_handle(cancel)->is_set = true; });
}
moeflux_status moeflux_cancel_reset(moeflux_cancel* cancel) {
  return call([&] { find_handle(cancel)->is_set = false; });
}
moeflux_status moeflux_cancel_free(moeflux_cancel* cancel) {
  return call([&] { remove_handle(cancel); });
}

moeflux_status moeflux_context_new(moeflux_model* model, const moeflux_context_options* options,
                                   moeflux_context** context) {
  return call([&] {
    const auto state = find_handle(model);
    required(context, "context");
    const auto given = read_struct_or_default(options, "moeflux_context_options");
    const uint64_t n = given.n_sequences ? given.n_sequences : 1;
    if (n > kMostSequences) refuse("n_sequences is {}, of at most {}", n, kMostSequences);
    *context = make_handle<moeflux_context>(std::make_shared<ContextState>(state, n, history_options(given)));
  });
}

moeflux_status moeflux_context_free(moeflux_context* context) {
  return call([&] { remove_handle(context)->close(); });
}

moeflux_status moeflux_eval(moeflux_context* context, const moeflux_batch* batch, float* logits,
                            size_t n_logits) {
  return call([&] {
    const auto state = find_handle(context);
    const auto use = state->use.begin("context");
    const auto given = read_struct(batch, "moeflux_batch");
    const CancelWatch watch(*state, given.cancel);
    const EvalRequest request = read_batch(*state, given);
    const size_t n_vocab = state->model().engine.config().n_vocab;
    const auto rows = static_cast<size_t>(std::ranges::count(request.wanted, true));
    if (n_logits < rows * n_vocab)
      throw Failure(MOEFLUX_TOO_SMALL,
                    fmt::format("{} rows of logits need room for {} floats, and there is room for {}", rows,
                                rows * n_vocab, n_logits));
    if (rows > 0) required(logits, "logits");
    evaluate(*state, request, {logits, rows * n_vocab}, watch);
  });
}

moeflux_status moeflux_seq_pos_max(moeflux_context* context, uint32_t sequence, int64_t* position) {
  return call([&] {
    const auto state = find_handle(context);
    const auto use = state->use.begin("context");
    required(position, "position") = static_cast<int64_t>(state->sequence(sequence).size()) - 1;
  });
}

moeflux_status moeflux_seq_tokens(moeflux_context* context, uint32_t sequence, moeflux_token** tokens,
                                  size_t* n_tokens) {
  return call([&] {
    const auto state = find_handle(context);
    const auto use = state->use.begin("context");
    required(tokens, "tokens"), required(n_tokens, "n_tokens");
    give_list(state->sequence(sequence).tokens(), tokens, n_tokens);
  });
}

moeflux_status moeflux_seq_clear(moeflux_context* context, uint32_t sequence) {
  return with_sequence(context, sequence, [](ContextState&, TokenSequence& s) { s.clear(); });
}

moeflux_status moeflux_seq_remove(moeflux_context* context, uint32_t sequence, uint64_t begin, uint64_t end) {
  return with_sequence(context, sequence, [&](ContextState&, TokenSequence& s) { s.remove(begin, end); });
}

moeflux_status moeflux_seq_copy(moeflux_context* context, uint32_t from, uint32_t to) {
  return with_sequence(context, to, [&](ContextState& state, TokenSequence& s) {
    s.copy_from(state.sequence(from), state.shared_model());
  });
}

moeflux_status moeflux_seq_checkpoint(moeflux_context* context, uint32_t sequence) {
  return with_sequence(context, sequence, [](ContextState&, TokenSequence& s) {
    s.drain();
    s.held().checkpoint();
  });
}

moeflux_status moeflux_seq_checkpoints(moeflux_context* context, uint32_t sequence, uint64_t** positions,
                                       size_t* n_positions) {
  return call([&] {
    const auto state = find_handle(context);
    const auto use = state->use.begin("context");
    required(positions, "positions"), required(n_positions, "n_positions");
    const std::vector<size_t> all = state->sequence(sequence).checkpoints();
    give_list<uint64_t>({all.begin(), all.end()}, positions, n_positions);
  });
}

moeflux_status moeflux_seq_restore_to(moeflux_context* context, uint32_t sequence, uint64_t position) {
  return with_sequence(context, sequence, [&](ContextState&, TokenSequence& s) { s.restore_to(position); });
}
