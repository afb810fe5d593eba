// Opening models, what they say of themselves, and text.
#include "library_test.h"

namespace library_test {
namespace {

using moeflux::Model;
using moeflux::OpenOptions;

TEST(LibraryModel, SaysWhatItIs) {
  EXPECT_EQ(moeflux_abi_version(), MOEFLUX_ABI_VERSION);
  const Model model(storyteller(), small());
  const moeflux::Info info = model.info();
  EXPECT_EQ(info.ctx, 256u);
  EXPECT_EQ(info.threads, 2u);
  EXPECT_STREQ(info.backend, "cpu");
  EXPECT_STREQ(info.precision, "fast");
  EXPECT_GT(info.n_experts, info.top_k);
  EXPECT_TRUE(info.has_tokenizer && info.has_template);
  const moeflux::Plan plan = model.plan();
  EXPECT_GE(plan.host_bytes, plan.resident_bytes + plan.kv_bytes + plan.ram_slot_bytes);
  EXPECT_NE(model.plan_json().find("\"expert_bytes\":" + std::to_string(plan.expert_bytes)),
            std::string::npos);
}

TEST(LibraryModel, KeepsRoomForSeveralSequences) {
  OpenOptions options = small();
  const uint64_t one = Model(storyteller(), options).plan().kv_bytes;
  options.sequences = 3;
  const Model model(storyteller(), options);
  EXPECT_EQ(model.info().sequences, 3u);
  EXPECT_EQ(model.plan().kv_bytes, 3 * one);
}

TEST(LibraryModel, RefusesWrongOptionsByName) {
  const auto message = [](auto&& change) -> std::string {
    OpenOptions options = small();
    change(options);
    try {
      const Model model(storyteller(), options);
    } catch (const moeflux::Error& e) {
      EXPECT_EQ(e.status(), MOEFLUX_INVALID_ARGUMENT) << e.what();
      return e.what();
    }
    return "it was opened";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.backend = "abacus"; }), "abacus"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.precision = "vague"; }), "vague"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.kv = "f8"; }), "f8"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.isa = "mmx"; }), "mmx"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.chunk = 1u << 30; }), "chunk"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.threads = 100'000; }), "threads"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.vram_share = 1.5; }), "vram_share"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.vram_share = 0.5, o.vram_bytes = 1; }), "vram_share"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.ctx = UINT64_MAX; }), "context"));
  EXPECT_TRUE(has(message([](OpenOptions& o) { o.precision = "exact", o.kv = "q8"; }), "exact"));
}

TEST(LibraryModel, RefusesBudgetsThatCannotBeKept) {
  OpenOptions options = small();
  options.max_memory_bytes = 1 << 20;
  EXPECT_EQ(status_of([&] { Model(storyteller(), options); }), MOEFLUX_OUT_OF_MEMORY);
  options = small();
  options.sequences = 1 << 20;
  EXPECT_EQ(status_of([&] { Model(storyteller(), options); }), MOEFLUX_OUT_OF_MEMORY);
}

TEST(LibraryModel, ReportsProgressAndWhatItDid) {
  OpenOptions options = small();
  std::vector<moeflux::Progress> reports;
  std::vector<std::string> messages;
  options.on_progress = [&](const moeflux::Progress& p) { reports.push_back(p); };
  options.on_log = [&](bool, const std::string& message) { messages.push_back(message); };
  const Model model(storyteller(), options);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().what, "loading");
  EXPECT_TRUE(reports.back().ended);
  EXPECT_EQ(reports.back().done, reports.back().total);
  ASSERT_FALSE(messages.empty());
  EXPECT_NE(messages.front().find("storyteller"), std::string::npos);
  model.load_experts();
  EXPECT_EQ(reports.back().what, "loading experts");
  EXPECT_EQ(model.stats().bytes_read, model.plan().expert_bytes);
  EXPECT_NE(model.stats_json().find("\"bytes_read\""), std::string::npos);
}

TEST(LibraryModel, ReportsOfProgressMayUseTheModel) {
  OpenOptions options = small();
  const Model* opened = nullptr;
  moeflux_context* context = nullptr;
  int n = 0;
  options.on_progress = [&](const moeflux::Progress& p) {
    if (!opened || !p.ended) return;
    ++n;
    EXPECT_FALSE(opened->tokenize("a b").empty());
    EXPECT_EQ(status_of([&] { opened->load_experts(); }), MOEFLUX_BUSY);
    EXPECT_EQ(status_of([&] { moeflux::Context(*opened).eval(std::vector<moeflux::Token>{1}); }),
              MOEFLUX_BUSY);
    EXPECT_EQ(moeflux_context_free(context), MOEFLUX_OK);
    EXPECT_EQ(moeflux_close(opened->get()), MOEFLUX_OK);
  };
  const Model model(storyteller(), options);
  ASSERT_EQ(moeflux_context_new(model.get(), nullptr, &context), MOEFLUX_OK);
  opened = &model;
  model.load_experts();
  EXPECT_EQ(n, 1);
  EXPECT_EQ(status_of([&] { model.info(); }), MOEFLUX_INVALID_HANDLE);
}

TEST(LibraryModel, StructsOfOtherVersionsAreUnderstoodOrRefused) {
  const Model model(storyteller(), small());
  struct Larger {
    moeflux_model_info info;
    uint64_t unknown;
  } larger{};
  larger.info.size = sizeof larger;
  EXPECT_EQ(moeflux_get_info(model.get(), &larger.info), MOEFLUX_OK);
  EXPECT_EQ(larger.info.ctx, 256u);
  EXPECT_EQ(larger.info.size, sizeof larger);
  larger.unknown = 1;
  EXPECT_EQ(moeflux_get_info(model.get(), &larger.info), MOEFLUX_INVALID_ARGUMENT);
  for (const size_t wrong : {size_t{0}, size_t{8}, sizeof(moeflux_model_info) - 1, SIZE_MAX}) {
    moeflux_model_info info{};
    info.size = wrong;
    EXPECT_EQ(moeflux_get_info(model.get(), &info), MOEFLUX_INVALID_ARGUMENT) << wrong;
  }
}

TEST(LibraryText, TokensAndBack) {
  const Model model(storyteller(), small());
  const std::string text = "The cat sat on the mat. Größe, 北京!";
  const auto tokens = model.tokenize(text, 0);
  EXPECT_EQ(model.detokenize(tokens), text);
  std::string bytes;
  for (const moeflux::Token token : tokens) bytes += model.token_bytes(token);
  EXPECT_EQ(bytes, text);
  EXPECT_TRUE(model.tokenize("", 0).empty());
  ASSERT_FALSE(model.stop_tokens().empty());
  const std::string end = model.detokenize(std::vector{model.stop_tokens().front()});
  EXPECT_EQ(model.find_token(end), model.stop_tokens().front());
  EXPECT_EQ(model.tokenize(end, MOEFLUX_TEXT_MARKERS), std::vector{model.stop_tokens().front()});
  EXPECT_GT(model.tokenize(end, 0).size(), 1u);  // as text that somebody wrote
  EXPECT_EQ(model.detokenize(std::vector{model.stop_tokens().front()}, MOEFLUX_TEXT_PLAIN), "");
  EXPECT_EQ(status_of([&] { model.find_token("no single token"); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([&] { model.token_bytes(1u << 31); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([&] { model.tokenize(text, 1u << 9); }), MOEFLUX_INVALID_ARGUMENT);
}

TEST(LibraryText, Conversations) {
  const Model model(storyteller(), small());
  moeflux::Chat chat{.messages = R"([{"role": "user", "content": "Tell me a story."}])"};
  const std::string text = model.apply_template(chat);
  EXPECT_NE(text.find("Tell me a story."), std::string::npos);
  EXPECT_EQ(model.detokenize(model.chat_tokens(chat)), text);
  EXPECT_EQ(model.chat_tokens(chat), model.tokenize(text, MOEFLUX_TEXT_MARKERS));
  // A marker that somebody writes in a message is text.
  const std::string end = model.detokenize(std::vector{model.stop_tokens().front()});
  moeflux::Chat sly{.messages = R"([{"role": "user", "content": "a)" + end + R"(b"}])"};
  EXPECT_NE(model.chat_tokens(sly), model.tokenize(model.apply_template(sly), MOEFLUX_TEXT_MARKERS));
  EXPECT_EQ(model.detokenize(model.chat_tokens(sly)), model.apply_template(sly));
  const std::string answer = model.parse_answer(chat, "<think>\nhm\n</think>\n\nOnce.");
  EXPECT_NE(answer.find("\"text\":\"Once.\""), std::string::npos) << answer;
  EXPECT_NE(answer.find("hm"), std::string::npos) << answer;
  for (const char* wrong : {"", "{}", "[", "[1,2", "\"text\""})
    EXPECT_NE(status_of([&] { model.apply_template({.messages = wrong}); }), MOEFLUX_OK) << wrong;
  EXPECT_NE(
      status_of([&] { model.apply_template({.messages = chat.messages, .tools = "", .variables = "[]"}); }),
      MOEFLUX_OK);
}

}  // namespace
}  // namespace library_test
