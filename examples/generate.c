/* Continues a text, piece by piece as it comes: generate PACKAGE [TEXT] */
#include <moeflux/moeflux.h>
#include <stdio.h>
#include <string.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, moeflux_last_error());
  return 1;
}

static int32_t show(void* user, const moeflux_piece* piece) {
  (void)user;
  fwrite(piece->text, 1, piece->n_bytes, stdout);
  fflush(stdout);
  return MOEFLUX_CONTINUE;
}

int main(int argc, char** argv) {
  const char* text = argc > 2 ? argv[2] : "Once upon a time";
  moeflux_model* model = NULL;
  moeflux_context* context = NULL;
  moeflux_token* prompt = NULL;
  size_t n_prompt = 0;
  if (argc < 2) {
    fprintf(stderr, "usage: generate PACKAGE [TEXT]\n");
    return 2;
  }
  if (moeflux_open(argv[1], NULL, &model) != MOEFLUX_OK) return fail("opening the model");
  if (moeflux_context_new(model, NULL, &context) != MOEFLUX_OK) return fail("making a context");
  if (moeflux_tokenize(model, text, strlen(text), MOEFLUX_TEXT_START, &prompt, &n_prompt) != MOEFLUX_OK)
    return fail("reading the text");

  moeflux_sampling sampling = {.size = sizeof sampling};
  if (moeflux_sampling_defaults(model, &sampling) != MOEFLUX_OK) return fail("the model's defaults");
  sampling.temperature = 0; /* the likeliest token each time: the same text at every run */
  moeflux_generate_options options = {
      .size = sizeof options, .sampling = &sampling, .max_tokens = 60, .continued = 1, .on_text = show};
  moeflux_result result = {.size = sizeof result};
  fputs(text, stdout);
  if (moeflux_generate(context, 0, prompt, n_prompt, &options, &result) != MOEFLUX_OK)
    return fail("generating");
  fprintf(stderr, "\n%zu new tokens, %.1f per second\n", result.n_tokens,
          (double)result.n_tokens / result.decode_seconds);

  moeflux_result_free(&result);
  moeflux_free(prompt);
  moeflux_context_free(context);
  moeflux_close(model);
  return 0;
}
