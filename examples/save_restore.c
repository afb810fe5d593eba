/* Reads a text once, keeps its state in a file, and goes on from there twice: save_restore PACKAGE FILE */
#include <moeflux/moeflux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(moeflux_status status, const char* what) {
  if (status == MOEFLUX_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, moeflux_status_name(status), moeflux_last_error());
  exit(1);
}

static void go_on(moeflux_model* model, moeflux_context* context, const char* text) {
  moeflux_token* tokens;
  size_t n_tokens;
  moeflux_sampling sampling = {.size = sizeof sampling};
  check(moeflux_sampling_defaults(model, &sampling), "defaults");
  sampling.temperature = 0;
  moeflux_generate_options options = {
      .size = sizeof options, .sampling = &sampling, .max_tokens = 20, .continued = 1};
  moeflux_result result = {.size = sizeof result};
  check(moeflux_tokenize(model, text, strlen(text), 0, &tokens, &n_tokens), "tokenizing");
  check(moeflux_generate(context, 0, tokens, n_tokens, &options, &result), "generating");
  printf("...%s%s\n", text, result.text);
  moeflux_result_free(&result);
  moeflux_free(tokens);
}

int main(int argc, char** argv) {
  const char text[] = "Once upon a time, there was a little girl named Lily. She had a big red ball.";
  moeflux_model* model;
  moeflux_context* context;
  moeflux_token* tokens;
  size_t n_tokens;
  if (argc < 3) {
    fprintf(stderr, "usage: save_restore PACKAGE FILE\n");
    return 2;
  }
  check(moeflux_open(argv[1], NULL, &model), "opening");
  check(moeflux_context_new(model, NULL, &context), "making a context");
  check(moeflux_tokenize(model, text, strlen(text), MOEFLUX_TEXT_START, &tokens, &n_tokens), "tokenizing");
  moeflux_batch batch = {.size = sizeof batch, .n_tokens = n_tokens, .tokens = tokens};
  uint8_t* no_logits = calloc(n_tokens, 1);
  batch.want_logits = no_logits;
  check(moeflux_eval(context, &batch, NULL, 0), "evaluating");
  check(moeflux_state_save_file(context, 0, argv[2]), "saving");

  go_on(model, context, " One day");
  check(moeflux_state_load_file(context, 0, argv[2]), "loading");
  go_on(model, context, " Her mom");

  free(no_logits);
  moeflux_free(tokens);
  moeflux_context_free(context);
  moeflux_close(model);
  return 0;
}
