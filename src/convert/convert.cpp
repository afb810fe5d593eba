#include "convert/convert.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/hash.h"
#include "base/progress.h"
#include "base/threads.h"
#include "convert/encode.h"

namespace moeflux {
namespace {

constexpr uint64_t kSliceBytes = 8u << 20;       // of float values that a worker holds at a time, roughly
constexpr uint64_t kMemoryBudget = 1200u << 20;  // for the buffers of all workers
constexpr uint64_t kSyncBytes = 128u << 20;      // written between two entries of the journal

struct Unit {
  bool expert;
  size_t index;         // resident tensor, or layer index
  uint64_t number = 0;  // of the expert
};

struct UnitResult {
  uint64_t xxh3 = 0;
  ErrorSum sum;
};

// One line per finished unit: number, checksum, error, power, end mark. A torn last line is as if it were not
// there.
class Journal {
 public:
  Journal(const fs::path& folder, const std::string& identity, std::vector<UnitResult>& results,
          std::vector<bool>& durable)
      : file_(File::open_write(folder / "journal")) {
    const std::string head = fmt::format("moeflux-convert {} {}\n", kPackageVersion, identity);
    const std::string text = read_text(folder / "journal", 1u << 30);
    if (text.find('\n') == std::string::npos) {
      file_.resize(0);
      file_.append(head);
      file_.sync();
      return;
    }
    if (!text.starts_with(head))
      fail(Errc::Exists,
           "{}: holds an unfinished conversion of another source or with other options; remove it to "
           "start over, or repeat that conversion to finish it",
           folder.string());
    size_t at = head.size(), whole = at;
    while (at < text.size()) {
      const size_t end = text.find('\n', at);
      if (end == std::string::npos || text[end - 1] != '*') break;
      unsigned long long unit, sum;
      double error, power;
      if (std::sscanf(text.c_str() + at, "%llu %llx %la %la", &unit, &sum, &error, &power) != 4 ||
          unit >= results.size())
        break;
      results[unit] = {sum, {error, power}};
      durable[unit] = true;
      at = whole = end + 1;
    }
    file_.resize(whole);
  }

  // The units' bytes must be on disk already.
  void add(const std::vector<size_t>& units, const std::vector<UnitResult>& results) {
    std::string lines;
    for (const size_t unit : units) {
      char line[128];
      const UnitResult& r = results[unit];
      std::snprintf(line, sizeof line, "%zu %016llx %a %a *\n", unit, static_cast<unsigned long long>(r.xxh3),
                    r.sum.error, r.sum.power);
      lines += line;
    }
    file_.append(lines);
    file_.sync();
  }

 private:
  File file_;
};

class Converter {
 public:
  Converter(const OpenSource& open, const fs::path& package, const ConvertOptions& options)
      : source_(*open.source), package_(package), options_(options), specs_(spec_table()) {}

  ConvertResult run(PackageLayout layout) {
    check_target(package_, layout.total_bytes(), !options_.consume);
    const PartialLock lock(package_);
    const fs::path partial = partial_folder(package_);
    plan_units(layout);
    // A journal without its files vouches for nothing.
    if (!fs::exists(partial / "package")) fs::remove(partial / "journal");
    Journal journal(partial, identity(layout), results_, durable_);
    if (options_.consume) save_headers();
    PackageWriter writer(package_, std::move(layout), !options_.consume);
    writer.copy_published_files(source_.checkpoint().folder());
    writer_ = &writer;
    journal_ = &journal;

    ConvertResult result;
    uint64_t bytes = 0;
    std::vector<size_t> todo;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (durable_[i])
        ++result.units_resumed;
      else
        todo.push_back(i), bytes += unit_bytes(units_[i]);
    }
    consume_finished_shards();
    convert_all(todo, bytes);
    fill_manifest(writer.manifest());
    writer.publish();
    result.manifest = writer.manifest();
    result.bytes_written = writer.layout().total_bytes();
    return result;
  }

 private:
  std::map<std::string, const TensorSpec*> spec_table() const {
    std::map<std::string, const TensorSpec*> table;
    for (const TensorSpec& spec : source_.resident()) table[spec.name] = &spec;
    return table;
  }

  // The same source, options and program version give the same bytes; anything else must not be mixed.
  std::string identity(const PackageLayout& layout) const {
    Hasher h;
    h.add(write_manifest(layout.manifest));
    h.add(read_text(source_.checkpoint().folder() / "config.json", 64u << 20));
    for (const Shard& s : source_.checkpoint().shards()) h.add(s.name), h.add(s.header);
    return to_hex(h.digest());
  }

  // Units in the order of the last shard that they need, so that shards are done with one after the other.
  void plan_units(const PackageLayout& layout) {
    std::vector<std::pair<size_t, Unit>> order;
    const auto add = [&](const Unit& unit) {
      const std::set<size_t> shards = shards_of(unit, layout);
      order.emplace_back(*shards.rbegin(), unit);
    };
    for (size_t i = 0; i < layout.manifest.resident.size(); ++i) add({false, i});
    for (size_t l = 0; l < layout.manifest.layers.size(); ++l)
      for (uint64_t e = 0; e < layout.manifest.layers[l].n_experts(); ++e) add({true, l, e});
    std::ranges::stable_sort(order, {}, [](const auto& o) { return o.first; });
    shard_units_.resize(source_.checkpoint().shards().size());
    for (const auto& [_, unit] : order) {
      for (const size_t shard : shards_of(unit, layout)) shard_units_[shard].push_back(units_.size());
      units_.push_back(unit);
    }
    results_.resize(units_.size());
    durable_.resize(units_.size());
  }

  std::set<size_t> shards_of(const Unit& unit, const PackageLayout& layout) const {
    std::set<size_t> shards;
    const auto matrix = [&](const SourceMatrix& m) {
      for (const CheckpointTensor* t : {m.weight, m.scales, m.biases})
        if (t) shards.insert(t->shard);
    };
    if (unit.expert) {
      const ExpertLayer& l = layout.manifest.layers[unit.index];
      for (size_t p = 0; p < l.parts.size(); ++p)
        if (l.parts[p].tiled)
          matrix(source_.expert_matrix(l.layer, unit.number, p));
        else
          shards.insert(source_.expert_vector(l.layer, unit.number, p).tensor->shard);
    } else {
      const TensorSpec& spec = *specs_.at(layout.manifest.resident[unit.index].tensor.name);
      if (spec.matrix)
        matrix(source_.matrix(spec));
      else
        shards.insert(source_.vector(spec).tensor->shard);
    }
    return shards;
  }

  void convert_all(const std::vector<size_t>& todo, uint64_t bytes) {
    Progress progress("converting", bytes);
    std::exception_ptr failure;
    try {
      parallel_for(todo.size(), worker_count(), [&](size_t i) {
        finish(todo[i], process(units_[todo[i]]));
        progress.add(unit_bytes(units_[todo[i]]));
      });
    } catch (...) {
      failure = std::current_exception();
    }
    std::unique_lock guard(mutex_);
    try {
      commit(guard);  // also after a failure: what was finished need not be done again
    } catch (...) {
      if (!failure) throw;
    }
    if (failure) std::rethrow_exception(failure);
  }

  size_t worker_count() const {
    uint64_t largest = 4 * kSliceBytes;
    for (const ExpertLayer& l : writer_->layout().manifest.layers) {
      uint64_t whole = 0;  // a transposed matrix is held as stored and as floats
      for (size_t p = 0; p < l.parts.size(); ++p) {
        if (!l.parts[p].tiled) continue;
        const SourceMatrix m = source_.expert_matrix(l.layer, 0, p);
        if (!m.transposed.empty())
          whole = std::max(whole, (m.stored_rows * m.stored_cols + m.rows * m.cols) * 4);
      }
      largest = std::max(largest, l.record_bytes + whole + 4 * kSliceBytes);
    }
    const size_t threads = options_.threads ? options_.threads : hardware_threads();
    return std::clamp<size_t>(kMemoryBudget / largest, 1, threads);
  }

  uint64_t unit_bytes(const Unit& u) const {
    const Manifest& m = writer_->layout().manifest;
    return u.expert ? m.layers[u.index].record_bytes : m.resident[u.index].tensor.bytes;
  }

  UnitResult process(const Unit& u) const { return u.expert ? convert_expert(u) : convert_resident(u); }

  // Encodes a whole matrix slice by slice; sink(offset, bytes) gets consecutive tiles.
  template <class Sink>
  void encode(const SourceMatrix& m, const MatrixFormat& format, const std::string& name, ErrorSum& sum,
              Sink sink) const {
    const uint64_t per_block = ceil_div(m.cols, format.tile_cols()) * format.tile_bytes();
    uint64_t step = std::max<uint64_t>(kTileRows, kSliceBytes / 4 / m.cols / kTileRows * kTileRows);
    if (!m.transposed.empty())
      step = align_up(m.transposed[0].columns.count, kTileRows);  // a block is read whole
    SourceRows rows;
    std::vector<std::byte> tiles;
    for (uint64_t first = 0; first < m.rows; first += step) {
      const uint64_t n = std::min(step, m.rows - first);
      source_.read_rows(m, first, n, rows);
      tiles.resize(ceil_div(n, kTileRows) * per_block);
      encode_rows(m, rows, format, name, tiles, sum);
      sink(first / kTileRows * per_block, std::span<const std::byte>(tiles));
    }
  }

  template <class Sink>
  static void sink_floats(const std::vector<float>& values, Sink sink) {
    sink(0, std::as_bytes(std::span(values)));
  }

  UnitResult convert_resident(const Unit& u) const {
    const StoredTensor& t = writer_->layout().manifest.resident[u.index].tensor;
    const TensorSpec& spec = *specs_.at(t.name);
    UnitResult r;
    Hasher hash;
    const auto sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
      writer_->resident().write_at(t.offset + offset, bytes);
      writer_->resident().start_writeback(t.offset + offset, bytes.size());
      hash.add(bytes);
    };
    if (spec.matrix)
      encode(source_.matrix(spec), t.format, t.name, r.sum, sink);
    else
      sink_floats(source_.read_vector(source_.vector(spec)), sink);
    r.xxh3 = hash.digest();
    return r;
  }

  UnitResult convert_expert(const Unit& u) const {
    const ExpertLayer& l = writer_->layout().manifest.layers[u.index];
    UnitResult r;
    std::vector<std::byte> record(l.record_bytes);
    for (size_t p = 0; p < l.parts.size(); ++p) {
      const StoredTensor& part = l.parts[p];
      const auto sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
        std::ranges::copy(bytes, record.begin() + static_cast<ptrdiff_t>(part.offset + offset));
      };
      if (part.tiled)
        encode(source_.expert_matrix(l.layer, u.number, p), part.format,
               fmt::format("layer {} expert {} {}", l.layer, u.number, part.name), r.sum, sink);
      else
        sink_floats(source_.read_vector(source_.expert_vector(l.layer, u.number, p)), sink);
    }
    writer_->experts(u.index).write_at(u.number * l.record_bytes, record);
    writer_->experts(u.index).start_writeback(u.number * l.record_bytes, record.size());
    r.xxh3 = xxh3(record);
    return r;
  }

  void finish(size_t unit, const UnitResult& result) {
    std::unique_lock lock(mutex_);
    results_[unit] = result;
    pending_.push_back(unit);
    unsynced_ += unit_bytes(units_[unit]);
    if (unsynced_ >= kSyncBytes && !syncing_) commit(lock);
  }

  // Bytes first, then the journal that vouches for them, then the sources that are no longer needed. Other
  // workers go on while this one waits for the disk.
  void commit(std::unique_lock<std::mutex>& lock) {
    syncing_ = true;
    const std::vector<size_t> units = std::exchange(pending_, {});
    unsynced_ = 0;
    lock.unlock();
    writer_->sync();
    journal_->add(units, results_);
    for (const size_t u : units) durable_[u] = true;
    consume_finished_shards();
    lock.lock();
    syncing_ = false;
  }

  void save_headers() const {
    fs::create_directories(consumed_headers(package_));
    for (const Shard& s : source_.checkpoint().shards())
      if (s.file) write_text(consumed_headers(package_) / s.name, s.header);
    sync_folder(consumed_headers(package_));
  }

  void consume_finished_shards() {
    if (!options_.consume) return;
    for (size_t s = 0; s < shard_units_.size(); ++s) {
      const bool done = std::ranges::all_of(shard_units_[s], [&](size_t u) { return durable_[u]; });
      if (done && !shard_units_[s].empty())
        fs::remove(source_.checkpoint().folder() / source_.checkpoint().shards()[s].name);
    }
  }

  void fill_manifest(Manifest& m) const {
    std::map<std::string, ErrorSum> sums;
    for (size_t i = 0; i < units_.size(); ++i) {
      const Unit& u = units_[i];
      (u.expert ? m.layers[u.index].xxh3[u.number] : m.resident[u.index].xxh3) = results_[i].xxh3;
      const TensorClass cls =
          u.expert ? TensorClass::Expert : specs_.at(m.resident[u.index].tensor.name)->cls;
      sums[to_string(cls)].error += results_[i].sum.error;
      sums[to_string(cls)].power += results_[i].sum.power;
    }
    for (const auto& [cls, sum] : sums)
      if (sum.power > 0 && sum.error > 0) m.error[cls] = std::sqrt(sum.error / sum.power);
  }

  const Source& source_;
  const fs::path& package_;
  const ConvertOptions& options_;
  const std::map<std::string, const TensorSpec*> specs_;
  std::vector<Unit> units_;
  std::vector<std::vector<size_t>> shard_units_;
  PackageWriter* writer_ = nullptr;
  Journal* journal_ = nullptr;
  std::vector<UnitResult> results_;  // each written by its worker under the mutex, then only read
  std::vector<bool> durable_;    // bytes and journal line are on disk; touched by the committing worker only
  std::mutex mutex_;             // guards what follows while workers run
  std::vector<size_t> pending_;  // finished, not yet in the journal
  uint64_t unsynced_ = 0;        // bytes of these
  bool syncing_ = false;         // one worker is committing
};

}  // namespace

namespace {

// "layers.*.self_attn.q_b_proj [192, 96]": the same matrix of all layers under one name.
std::string without_layer(const TensorSpec& spec) {
  std::string name = spec.cls == TensorClass::Expert ? "layers.*.experts." + spec.name : spec.name;
  if (name.starts_with("layers.") && !name.starts_with("layers.*"))
    name = "layers.*" + name.substr(name.find('.', 7));
  return fmt::format("{} [{}, {}]", name, spec.rows, spec.cols);
}

}  // namespace

PackageLayout lay_out_package(const Source& source, const WidthOptions& width,
                              const std::string& source_text) {
  PackageLayout layout;
  layout.manifest.family = source.model().family;
  layout.manifest.source = source_text;
  const auto choose = [&](const TensorSpec& spec, const SourceMatrix& m, Width w) {
    const MatrixFormat f = choose_format(spec, m.kept(), w, width.group);
    const bool asked = w != Width::Bf16 && w != Width::Keep && spec.may_narrow;
    if (asked && f == MatrixFormat::plain(MatrixType::Bf16)) ++layout.stays_bf16[without_layer(spec)];
    return f;
  };
  for (const TensorSpec& spec : source.resident())
    layout.add_resident(spec,
                        spec.matrix ? choose(spec, source.matrix(spec), width.resident) : MatrixFormat{});
  const std::vector<TensorSpec> parts = expert_schema(source.model());
  for (const uint64_t l : expert_layers(source.model(), source.schema_options())) {
    std::vector<MatrixFormat> formats;
    for (size_t p = 0; p < parts.size(); ++p)
      formats.push_back(parts[p].matrix ? choose(parts[p], source.expert_matrix(l, 0, p), width.experts)
                                        : MatrixFormat{});
    layout.add_experts(l, parts, formats, source.model().moe.n_experts);
  }
  layout.finish();
  return layout;
}

OpenSource open_source(const fs::path& folder, const fs::path& package, bool mtp, bool keep_resident) {
  OpenSource open;
  if (!fs::is_directory(folder)) fail(Errc::NotFound, "{}: no such folder", folder.string());
  const std::string path = (folder / "config.json").string();
  open.config = parse_json(read_text(path, 64u << 20), path);
  const ModelConfig model = parse_model_config(open.config, path);
  open.checkpoint =
      std::make_unique<Checkpoint>(folder, package.empty() ? fs::path() : consumed_headers(package));
  open.source = std::make_unique<Source>(*open.checkpoint, model, open.config, mtp, keep_resident);
  return open;
}

ConvertResult convert_package(const OpenSource& open, const fs::path& package,
                              const ConvertOptions& options) {
  const WidthOptions& w = options.width;
  fs::path folder = fs::absolute(open.checkpoint->folder());
  if (!folder.has_filename()) folder = folder.parent_path();
  const std::string text = fmt::format("{}: experts {}, resident {}, group {}", folder.filename().string(),
                                       to_string(w.experts), to_string(w.resident), w.group);
  return Converter(open, package, options).run(lay_out_package(*open.source, w, text));
}

}  // namespace moeflux
