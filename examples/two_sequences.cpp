// Two texts at once: each step evaluates one token of both, and each expert that they share is read once.
// two_sequences PACKAGE
#include <algorithm>
#include <cstdio>
#include <moeflux/moeflux.hpp>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: two_sequences PACKAGE\n");
    return 2;
  }
  try {
    moeflux::OpenOptions options;
    options.sequences = 2;  // memory for two whole contexts
    const moeflux::Model model(argv[1], options);
    const moeflux::Context context(model, 2);

    const char* beginnings[2] = {"Tom had a red ball.", "The little bird was sad."};
    moeflux::Batch batch;
    for (uint32_t s = 0; s < 2; ++s) {
      const auto tokens = model.tokenize(beginnings[s]);
      for (size_t i = 0; i < tokens.size(); ++i) batch.add(tokens[i], s, i + 1 == tokens.size());
    }
    for (int step = 0; step < 30; ++step) {
      const std::vector<float> logits = context.eval(batch);  // a row for each sequence
      batch = {};
      for (uint32_t s = 0; s < 2; ++s) {
        const auto row = logits.begin() + static_cast<std::ptrdiff_t>(s * context.n_vocab());
        const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(context.n_vocab()));
        batch.add(static_cast<moeflux::Token>(best - row), s, true);
      }
    }
    for (uint32_t s = 0; s < 2; ++s) std::printf("%s\n\n", model.detokenize(context.tokens(s)).c_str());
    return 0;
  } catch (const moeflux::Error& e) {
    std::fprintf(stderr, "%s: %s\n", moeflux_status_name(e.status()), e.what());
    return 1;
  }
}
