/* The C API from C, as strict as the language allows: c_program PACKAGE. Exits with 0 if everything is as it
 * should be. */
#include <moeflux/moeflux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                           \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, moeflux_last_error()); \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)
#define OK(call) EXPECT((call) == MOEFLUX_OK)

struct seen {
  size_t n_pieces, n_bytes, n_prompt, n_logs;
  char text[4096];
};

static int32_t on_text(void* user, const moeflux_piece* piece) {
  struct seen* seen = user;
  EXPECT(piece->size == sizeof *piece);
  EXPECT(strlen(piece->text) == piece->n_bytes);
  EXPECT(seen->n_bytes + piece->n_bytes < sizeof seen->text);
  memcpy(seen->text + seen->n_bytes, piece->text, piece->n_bytes);
  seen->n_bytes += piece->n_bytes;
  ++seen->n_pieces;
  return MOEFLUX_CONTINUE;
}

static int32_t on_prompt(void* user, size_t done, size_t total) {
  struct seen* seen = user;
  EXPECT(done <= total);
  seen->n_prompt = done;
  return MOEFLUX_CONTINUE;
}

static void on_log(void* user, int32_t level, const char* message) {
  struct seen* seen = user;
  EXPECT(level == MOEFLUX_LOG_INFO || level == MOEFLUX_LOG_WARNING);
  EXPECT(strlen(message) > 0);
  ++seen->n_logs;
}

static size_t best(const float* logits, size_t n) {
  size_t at = 0, i;
  for (i = 1; i < n; ++i)
    if (logits[i] > logits[at]) at = i;
  return at;
}

int main(int argc, char** argv) {
  static struct seen seen;
  const char text[] = "Once upon a time";
  moeflux_model* model = NULL;
  moeflux_context* context = NULL;
  moeflux_token* prompt = NULL;
  size_t n_prompt = 0, n_bytes = 0, i;
  char* out = NULL;
  int64_t position = 0;
  EXPECT(argc == 2);
  EXPECT(moeflux_abi_version() == MOEFLUX_ABI_VERSION);
  EXPECT(strlen(moeflux_version()) >= 5);
  EXPECT(moeflux_open("/there/is/no/such/package", NULL, &model) == MOEFLUX_NOT_FOUND);
  EXPECT(strstr(moeflux_last_error(), "/there/is/no/such/package") != NULL);
  EXPECT(model == NULL);

  moeflux_open_options open = {
      .size = sizeof open, .backend = "cpu", .threads = 2, .on_log = on_log, .user = &seen};
  OK(moeflux_open(argv[1], &open, &model));
  EXPECT(seen.n_logs > 0);
  moeflux_model_info info = {.size = sizeof info};
  OK(moeflux_get_info(model, &info));
  EXPECT(info.n_vocab > 0 && info.ctx > 0 && strcmp(info.backend, "cpu") == 0);
  OK(moeflux_context_new(model, NULL, &context));
  OK(moeflux_tokenize(model, text, strlen(text), MOEFLUX_TEXT_START, &prompt, &n_prompt));
  OK(moeflux_detokenize(model, prompt, n_prompt, 0, &out, &n_bytes));
  EXPECT(strcmp(out, text) == 0 && n_bytes == strlen(text));
  moeflux_free(out);

  /* Generated text is what evaluating and taking the likeliest token gives. */
  moeflux_sampling sampling = {.size = sizeof sampling};
  OK(moeflux_sampling_defaults(model, &sampling));
  sampling.temperature = 0;
  moeflux_generate_options options = {.size = sizeof options,
                                      .sampling = &sampling,
                                      .max_tokens = 20,
                                      .continued = 1,
                                      .on_text = on_text,
                                      .on_prompt = on_prompt,
                                      .user = &seen};
  moeflux_result result = {.size = sizeof result};
  OK(moeflux_generate(context, 0, prompt, n_prompt, &options, &result));
  EXPECT(result.finish == MOEFLUX_FINISH_LENGTH && result.n_tokens == 20 && result.n_prompt == n_prompt);
  EXPECT(seen.n_prompt == n_prompt && seen.n_pieces >= 20);
  EXPECT(seen.n_bytes == result.n_bytes && memcmp(seen.text, result.text, seen.n_bytes) == 0);
  OK(moeflux_seq_pos_max(context, 0, &position));
  EXPECT(position == (int64_t)(n_prompt + 20) - 1);

  float* logits = malloc(info.n_vocab * sizeof *logits);
  EXPECT(logits != NULL);
  OK(moeflux_seq_clear(context, 0));
  moeflux_batch batch = {.size = sizeof batch, .n_tokens = n_prompt, .tokens = prompt};
  for (i = 0; i < result.n_tokens; ++i) {
    moeflux_token next;
    OK(moeflux_eval(context, &batch, logits, info.n_vocab));
    next = (moeflux_token)best(logits, info.n_vocab);
    EXPECT(next == result.tokens[i]);
    batch.tokens = &result.tokens[i];
    batch.n_tokens = 1;
  }
  free(logits);

  OK(moeflux_plan_json(model, &out));
  EXPECT(strstr(out, "\"kv_bytes\"") != NULL);
  moeflux_free(out);
  moeflux_result_free(&result);
  moeflux_free(prompt);
  OK(moeflux_context_free(context));
  OK(moeflux_close(model));
  EXPECT(moeflux_close(model) == MOEFLUX_INVALID_HANDLE);
  EXPECT(moeflux_context_free(context) == MOEFLUX_INVALID_HANDLE);
  return 0;
}
