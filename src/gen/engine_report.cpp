#include "gen/engine_report.h"

#include "base/json.h"
#include "base/text.h"

namespace moeflux {

Json to_json(const MemoryPlan& p) {
  return {{"context", p.ctx},
          {"fits", p.fits},
          {"resident_bytes", p.resident_bytes},
          {"kv_bytes", p.kv_bytes},
          {"overhead_bytes", p.overhead_bytes},
          {"expert_bytes", p.expert_bytes},
          {"vram_slot_bytes", p.vram_slot_bytes},
          {"ram_slot_bytes", p.ram_slot_bytes},
          {"ssd_only_bytes", p.ssd_only_bytes},
          {"host_bytes", p.host_bytes},
          {"device_bytes", p.device_bytes},
          {"token_resident_bytes", p.token_resident_bytes},
          {"token_expert_bytes", p.token_expert_bytes},
          {"token_missed_bytes", p.token_missed_bytes},
          {"parameters", p.params_total},
          {"active_parameters", p.params_active}};
}

Json to_json(const StoreStats& s) {
  return {{"hits", s.hits},
          {"misses", s.misses},
          {"hit_rate", s.hit_rate()},
          {"reads", s.reads},
          {"bytes_read", s.bytes_read},
          {"stall_seconds", s.stall_s},
          {"stall_bytes", s.stall_bytes},
          {"stall_bytes_per_second", s.stall_bytes_per_s()},
          {"prefetched", s.prefetched},
          {"prefetch_useful", s.prefetch_useful},
          {"prefetch_late", s.prefetch_late},
          {"prefetch_wasted", s.prefetch_wasted},
          {"failed", s.failed}};
}

std::string describe_reads(const Engine& engine) {
  const DriveSpeed& d = engine.drive();
  ReadSettings s = d.settings;
  s.queue = std::string(engine.store().queue_name());
  std::string text = to_string(s);
  if (const uint64_t bytes = engine.store().registered_bytes())
    text += fmt::format(", {} of the slots registered", format_bytes(bytes));
  else if (engine.options().register_memory && !engine.store().holds_all() && engine.store_stats().reads > 0)
    text += ", no slots registered: this queue or system does not allow it";
  if (d.bytes_per_s > 0) text += fmt::format("; the drive gives {:.2f} GB/s", d.bytes_per_s / 1e9);
  return text;
}

}  // namespace moeflux
