#include "gen/verify.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

EngineArguments exact_by_default() {
  EngineArguments a;
  a.precision = "exact";
  return a;
}

struct VerifyArguments {
  std::string package, golden, against;
  EngineArguments engine = exact_by_default();
  double tolerance = 0;
  bool json = false;
};

void verify(const VerifyArguments& o) {
  if (o.golden.empty() && o.against.empty()) throw CLI::RequiredError("--golden or --against");
  const EngineOptions engine = o.engine.options();
  std::vector<VerifyItem> items;
  if (o.against.empty()) {
    items = verify_golden(o.package, engine, o.golden, o.tolerance);
  } else {
    EngineOptions reference = on_backend(engine, o.against);
    reference.precision = Precision::Exact;
    reference.kv.reset();
    items = verify_against(o.package, engine, reference, o.golden, o.tolerance);
  }
  const bool pass = std::ranges::all_of(items, &VerifyItem::pass);
  if (o.json) {
    Json list = Json::array();
    for (const VerifyItem& i : items)
      list.push_back({{"item", i.name},
                      {"error", std::isfinite(i.error) ? Json(i.error) : Json(nullptr)},
                      {"bound", i.bound},
                      {"pass", i.pass()},
                      {"note", i.note}});
    fmt::print("{}\n", Json{{"pass", pass}, {"items", list}}.dump(1));
  } else {
    for (const VerifyItem& i : items)
      fmt::print("{}  {:<40} {:>9.2e}  (bound {:.0e})  {}\n", i.pass() ? "PASS" : "FAIL", i.name, i.error,
                 i.bound, i.note);
    fmt::print("{}: {} of {} items\n", pass ? "PASS" : "FAIL",
               std::ranges::count_if(items, &VerifyItem::pass), items.size());
  }
  if (!pass) throw Unsuccessful{};
}

}  // namespace

void add_verify_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("verify", "Compare a package with reference outputs, or two backends");
  cmd->footer(
      "With --golden: runs every item of a golden file (prompts as prefill and token by token, hidden "
      "states, router\n"
      "choices, greedy decoding) and prints the largest error of each. With --against: compares two backends "
      "stage by\n"
      "stage, each stage on the other backend's own inputs. Exit code 0 only if all items pass.\n\n"
      "--precision fast is always judged stage by stage, against exact cpu-ref: small errors flip routes.");
  auto o = std::make_shared<VerifyArguments>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  cmd->add_option("--golden", o->golden, "Reference outputs (golden.safetensors)")->type_name("FILE");
  cmd->add_option("--against", o->against, "Backend to compare with, in exact precision")
      ->check(CLI::IsMember(backend_names()));
  cmd->add_option("--tolerance", o->tolerance,
                  "Bound on the errors (default: 1e-4; 1e-3 with delta-net layers)")
      ->check(CLI::PositiveNumber);
  add_engine_options(*cmd, o->engine);
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { verify(*o); });
}

}  // namespace moeflux
