// One request on its way: its generations are submitted together, their texts taken apart as they come, and
// what comes out is handed to a writer that knows the API's form. Ends early when the client leaves, time is
// up or the server stops. Events come on the engine's thread; nothing here waits.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gen/scheduler.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/http_exchange.h"
#include "server/metrics.h"
#include "text/answer.h"

namespace moeflux {

struct TokenLogprob {
  struct One {
    std::string bytes;
    double logprob;
  };
  One token;
  std::vector<One> top;
};
using TokenLogprobs = std::vector<TokenLogprob>;

struct ChoiceEnd {
  FinishReason finish = FinishReason::Stop;
  bool has_calls = false;
  bool context_full = false;  // why the length was reached
  std::optional<std::string> stop_string = {};
};

struct AnswerUsage {
  size_t prompt_tokens = 0, cached_tokens = 0;         // each prompt once
  size_t new_tokens = 0, reasoning_tokens = 0;         // of all choices
  double queue_s = 0, first_token_s = 0, total_s = 0;  // the longest of all choices
  double prefill_s = 0, decode_s = 0;                  // of the first choice
};

// The form of an answer. Calls come one at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual bool streams() const { return false; }      // says what is added at once
  virtual void begin(const AnswerUsage& so_far) = 0;  // the request has been accepted
  virtual void progress(size_t, size_t) {}            // tokens of the prompt that are done, and all
  virtual void add(size_t choice, const AnswerEvent& event, const TokenLogprobs& logprobs) = 0;
  virtual void end_choice(size_t choice, const ChoiceEnd& end) = 0;
  virtual void end(const AnswerUsage& usage) = 0;
  virtual void fail(const ApiError& error) = 0;  // instead of the rest
};

struct AnswerContext {
  Scheduler& scheduler;
  const TextModel& model;
  ServerMetrics& metrics;
  size_t context = 0;                    // tokens
  std::chrono::milliseconds timeout{0};  // of a whole answer; 0: none
};

class AnswerJob : public std::enable_shared_from_this<AnswerJob> {
 public:
  AnswerJob(const AnswerContext& context, std::shared_ptr<HttpExchange> exchange,
            std::vector<ChoiceSpec> specs, std::unique_ptr<AnswerWriter> writer);

  // Throws ApiError where it is not accepted; then nothing has been written.
  void start();
  void stop(const ApiError& why);  // if it has not ended

 private:
  struct Choice {
    ChoiceSpec spec;
    std::optional<AnswerParser> parser = {};
    JobId id = 0;
    bool ended = false, has_calls = false, in_reasoning = false;
    size_t n_reasoning = 0;
    TokenLogprobs held = {};  // of tokens whose text has not come out yet
  };

  void submit(size_t index);
  void guarded(const std::function<void()>& work);  // with mutex_ taken
  bool is_over();
  // With mutex_ held.
  Next take(size_t index, const TextPiece& piece);
  void take_events(size_t index, const std::vector<AnswerEvent>& events);
  void finish(size_t index, const TextOutcome& outcome);
  void add_usage(const Choice& choice, const TextOutcome& outcome, bool first);
  void give_up(const ApiError& error);
  void cancel_all();
  void conclude(const std::string& how);
  TokenLogprob logprob_of(const Sample& sample) const;

  const AnswerContext context_;
  const std::shared_ptr<HttpExchange> exchange_;

  std::mutex mutex_;  // guards everything below
  std::vector<Choice> choices_;
  std::unique_ptr<AnswerWriter> writer_;
  AnswerUsage usage_;
  size_t n_running_ = 0;
  bool over_ = false;  // nothing more is written
};

}  // namespace moeflux
