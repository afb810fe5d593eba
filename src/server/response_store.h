// Answers of the responses API that clients may go on from or read again. Kept in memory within a budget; the
// least recently used leave first. For any thread.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/json.h"

namespace moeflux {

struct StoredResponse {
  OrderedJson response;  // as it was answered
  OrderedJson input;     // items that came with the request
  OrderedJson messages;  // the whole conversation up to the answer, without instructions
};

class ResponseStore {
 public:
  explicit ResponseStore(size_t budget_bytes) : budget_(budget_bytes) {}

  void keep(const std::string& id, StoredResponse response);
  std::shared_ptr<const StoredResponse> find(const std::string& id);  // null where it is not (any more)
  bool remove(const std::string& id);

 private:
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    size_t bytes;
    std::list<std::string>::iterator place;
  };
  void drop(std::map<std::string, Entry>::iterator entry);

  const size_t budget_;
  std::mutex mutex_;  // guards everything below
  std::map<std::string, Entry> entries_;
  std::list<std::string> recent_;  // the latest first
  size_t bytes_ = 0;
};

}  // namespace moeflux
