// The model as the APIs name it.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "gen/engine.h"
#include "gen/text_model.h"

namespace moeflux {

struct ModelInfo {
  std::string id;                         // what answers say
  std::vector<std::string> aliases = {};  // what requests may say as well
  bool any_name = false;                  // requests may say anything
  int64_t created = 0;                    // seconds since 1970
  size_t context = 0;
  std::string fingerprint = {};  // changes when weights, program or numeric settings do

  bool answers_to(const std::string& name) const;
  OrderedJson json() const;  // for /v1/models; in the form of both APIs
};

ModelInfo describe_model(const Engine& engine, const std::string& version);

}  // namespace moeflux
