// Writes a log of drawn routes, on which `moeflux cache-sim` compares policies where no recorded one is at
// hand.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "store/test_routes.h"

int main(int argc, char** argv) {
  using namespace moeflux;
  if (argc != 6) {
    std::fputs(
        "usage: zipf_routes LOG TOKENS EXPONENT DRIFT REPETITION\n"
        "48 layers of 128 experts, 8 per token. DRIFT: swaps of two experts' popularity per layer and "
        "token;\n"
        "REPETITION: how probable a choice stays for the next token.\n",
        stderr);
    return 2;
  }
  try {
    RecipeRoutes source({.n_layers = 48,
                         .n_experts = 128,
                         .top_k = 8,
                         .exponent = std::atof(argv[3]),
                         .drift = std::atof(argv[4]),
                         .repetition = std::atof(argv[5]),
                         .seed = 1});
    RoutingLogWriter log(argv[1], source.shape());
    for (int tokens = std::atoi(argv[2]); tokens > 0; --tokens) {
      const RoutingStep step = source.next();
      for (uint32_t l = 0; l < step.ids.size(); ++l) log.add(l, step.ids[l]);
    }
    log.close();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "zipf_routes: %s\n", e.what());
    return 1;
  }
}
