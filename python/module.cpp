// `import moeflux`: the C++ API for Python, with the same names. Python's lock is given back while the
// library works, so that other threads of the program go on.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>

#include "moeflux/moeflux.hpp"
#include "stream.h"

namespace py = pybind11;
using namespace py::literals;

namespace {

using moeflux::Context;
using moeflux::Model;
using moeflux::Token;
using Released = py::call_guard<py::gil_scoped_release>;

// JSON goes through Python's own module: what it has as text, the library takes as text.
std::string dump_json(const py::object& value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  return py::module_::import("json").attr("dumps")(value).cast<std::string>();
}
py::object load_json(const std::string& text) { return py::module_::import("json").attr("loads")(text); }

// Rows of logits. Has Python's buffer interface: numpy.asarray(logits) is [rows, n_vocab], without a copy.
struct Logits {
  std::vector<float> values;
  size_t n_vocab = 1;

  size_t rows() const { return values.size() / n_vocab; }
  std::span<const float> row(py::ssize_t index) const {
    const auto n = static_cast<py::ssize_t>(rows());
    if (index < 0) index += n;
    if (index < 0 || index >= n) throw py::index_error("there are " + std::to_string(n) + " rows of logits");
    return std::span(values).subspan(static_cast<size_t>(index) * n_vocab, n_vocab);
  }
};

uint32_t flag(bool on, uint32_t value) { return on ? value : 0; }

// What is destroyed may have to wait for a thread that waits for Python's lock.
struct DeleteReleased {
  template <class T>
  void operator()(T* object) const {
    std::optional<py::gil_scoped_release> released;
    if (PyGILState_Check()) released.emplace();
    delete object;
  }
};

moeflux::Chat make_chat(const py::object& messages, const py::object& tools, const py::dict& variables,
                        bool answer) {
  return {.messages = dump_json(messages),
          .tools = dump_json(tools),
          .variables = variables.empty() ? "" : dump_json(variables),
          .answer = answer};
}

void set_fields(moeflux::Sampling& sampling, const py::kwargs& fields) {
  py::object object = py::cast(&sampling, py::return_value_policy::reference);
  for (const auto& [name, value] : fields) {
    if (!py::hasattr(object, name))
      throw py::type_error("there is no sampling option '" + name.cast<std::string>() + "'");
    object.attr(name) = value;
  }
}

moeflux::DraftFrom draft_source(const std::string& name) {
  if (name == "auto") return moeflux::DraftFrom::Auto;
  if (name == "ngram") return moeflux::DraftFrom::Ngram;
  if (name == "mtp") return moeflux::DraftFrom::Mtp;
  throw py::value_error("draft_from is '" + name + "', want auto, ngram or mtp");
}

struct GenerateArguments {
  uint64_t max_tokens, min_tokens;
  std::vector<std::string> stop;
  std::string grammar;
  py::object json_schema;
  bool ignore_stop_tokens, whole_text, continued;
  const moeflux::Sampling* sampling;
  uint64_t draft;
  std::string draft_from;
  const moeflux::Cancel* cancel;

  moeflux::GenerateOptions options() const {
    moeflux::GenerateOptions o;
    if (sampling) o.sampling = *sampling;
    o.max_tokens = max_tokens;
    o.min_tokens = min_tokens;
    o.stop = stop;
    o.grammar = grammar;
    o.json_schema = dump_json(json_schema);
    o.ignore_stop_tokens = ignore_stop_tokens;
    o.whole_text = whole_text;
    o.continued = continued;
    o.draft = draft;
    o.draft_from = draft_source(draft_from);
    o.cancel = cancel;
    return o;
  }
};

py::dict info_dict(const moeflux::Info& i) {
  return py::dict("n_vocab"_a = i.n_vocab, "n_layers"_a = i.n_layers, "d_model"_a = i.d_model,
                  "n_experts"_a = i.n_experts, "top_k"_a = i.top_k, "ctx"_a = i.ctx,
                  "sequences"_a = i.sequences, "chunk"_a = i.chunk, "threads"_a = i.threads,
                  "has_tokenizer"_a = i.has_tokenizer != 0, "has_template"_a = i.has_template != 0,
                  "family"_a = i.family, "backend"_a = i.backend, "precision"_a = i.precision);
}

void add_model(py::module_& m) {
  py::class_<Model>(m, "Model", "A package that is open. Also a context manager.")
      .def(py::init([](const std::filesystem::path& package, const std::string& backend,
                       const std::string& precision, const std::string& kv, const std::string& isa,
                       uint64_t ram_bytes, uint64_t vram_bytes, double vram_share, uint64_t max_memory_bytes,
                       uint64_t ctx, uint64_t sequences, uint64_t chunk, uint32_t threads, bool check_reads,
                       std::vector<std::string> stripes,
                       std::function<void(const std::string&, uint64_t, uint64_t)> on_progress,
                       std::function<void(bool, const std::string&)> on_log) {
             moeflux::OpenOptions o{.backend = backend,
                                    .precision = precision,
                                    .kv = kv,
                                    .isa = isa,
                                    .ram_bytes = ram_bytes,
                                    .vram_bytes = vram_bytes,
                                    .vram_share = vram_share,
                                    .max_memory_bytes = max_memory_bytes,
                                    .ctx = ctx,
                                    .sequences = sequences,
                                    .chunk = chunk,
                                    .threads = threads,
                                    .check_reads = check_reads,
                                    .stripes = std::move(stripes),
                                    .on_log = std::move(on_log)};
             if (on_progress)
               o.on_progress = [call = std::move(on_progress)](const moeflux::Progress& p) {
                 call(p.what, p.done, p.total);
               };
             const py::gil_scoped_release released;
             return std::make_unique<Model>(package, o);
           }),
           "package"_a, py::kw_only(), "backend"_a = "", "precision"_a = "", "kv"_a = "", "isa"_a = "",
           "ram_bytes"_a = 0, "vram_bytes"_a = 0, "vram_share"_a = 0.0, "max_memory_bytes"_a = 0, "ctx"_a = 0,
           "sequences"_a = 0, "chunk"_a = 0, "threads"_a = 0, "check_reads"_a = true,
           "stripes"_a = std::vector<std::string>{}, "on_progress"_a = nullptr, "on_log"_a = nullptr,
           "Opens a package. What is left out has the default that `moeflux run --help` names. "
           "on_progress(what, done, total) and on_log(warning, message) may be called by any thread.")
      .def("close", &Model::close, Released())
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__",
           [](Model& model, const py::args&) {
             const py::gil_scoped_release released;
             model.close();
           })
      .def("load_experts", &Model::load_experts, Released(),
           "Reads all experts now, where there is memory for all.")
      .def_property_readonly("info", [](const Model& model) { return info_dict(model.info()); })
      .def_property_readonly("plan", [](const Model& model) { return load_json(model.plan_json()); })
      .def_property_readonly("stats", [](const Model& model) { return load_json(model.stats_json()); })
      .def(
          "tokenize",
          [](const Model& model, const std::string& text, bool start, bool markers) {
            const py::gil_scoped_release released;
            return model.tokenize(text,
                                  flag(start, MOEFLUX_TEXT_START) | flag(markers, MOEFLUX_TEXT_MARKERS));
          },
          "text"_a, "start"_a = true, "markers"_a = false,
          "start: with what stands before every text; markers: text such as <|im_start|> is that token.")
      .def(
          "detokenize",
          [](const Model& model, const std::vector<Token>& tokens, bool plain) {
            return model.detokenize(tokens, flag(plain, MOEFLUX_TEXT_PLAIN));
          },
          "tokens"_a, "plain"_a = false, "plain: special tokens give no text.")
      .def(
          "token_bytes", [](const Model& model, Token token) { return py::bytes(model.token_bytes(token)); },
          "token"_a)
      .def("find_token", &Model::find_token, "name"_a)
      .def_property_readonly("stop_tokens", &Model::stop_tokens)
      .def(
          "apply_template",
          [](const Model& model, const py::object& messages, const py::object& tools, bool answer,
             const py::kwargs& variables) {
            return model.apply_template(make_chat(messages, tools, variables, answer));
          },
          "messages"_a, "tools"_a = py::none(), "answer"_a = true,
          "The text that the model reads for a conversation. Further arguments are variables of the "
          "template.")
      .def(
          "chat_tokens",
          [](const Model& model, const py::object& messages, const py::object& tools, bool answer,
             const py::kwargs& variables) {
            return model.chat_tokens(make_chat(messages, tools, variables, answer));
          },
          "messages"_a, "tools"_a = py::none(), "answer"_a = true,
          "The tokens of a conversation; markers that somebody wrote in a message stay text.")
      .def(
          "parse_answer",
          [](const Model& model, const py::object& messages, const std::string& answer,
             const py::object& tools, const py::kwargs& variables) {
            return load_json(model.parse_answer(make_chat(messages, tools, variables, true), answer));
          },
          "messages"_a, "answer"_a, "tools"_a = py::none(),
          "Takes an answer apart: text, reasoning, tool_calls.")
      .def(
          "sampling",
          [](const Model& model, const py::kwargs& fields) {
            moeflux::Sampling sampling = model.sampling();
            set_fields(sampling, fields);
            return sampling;
          },
          "The model's own defaults, with a new seed, and what is given in place of them.");
}

void add_sampling(py::module_& m) {
  using moeflux::Sampling;
  py::class_<Sampling>(m, "Sampling", "How tokens are chosen: docs/SAMPLING.md. Model.sampling() makes one.")
      .def_readwrite("seed", &Sampling::seed)
      .def_readwrite("temperature", &Sampling::temperature)
      .def_readwrite("top_k", &Sampling::top_k)
      .def_readwrite("top_p", &Sampling::top_p)
      .def_readwrite("min_p", &Sampling::min_p)
      .def_readwrite("typical_p", &Sampling::typical_p)
      .def_readwrite("top_n_sigma", &Sampling::top_n_sigma)
      .def_readwrite("xtc_probability", &Sampling::xtc_probability)
      .def_readwrite("xtc_threshold", &Sampling::xtc_threshold)
      .def_readwrite("repetition_penalty", &Sampling::repetition_penalty)
      .def_readwrite("frequency_penalty", &Sampling::frequency_penalty)
      .def_readwrite("presence_penalty", &Sampling::presence_penalty)
      .def_readwrite("penalty_window", &Sampling::penalty_window)
      .def_readwrite("dry_multiplier", &Sampling::dry_multiplier)
      .def_readwrite("dry_base", &Sampling::dry_base)
      .def_readwrite("dry_allowed_length", &Sampling::dry_allowed_length)
      .def_readwrite("dry_window", &Sampling::dry_window)
      .def_readwrite("dry_breakers", &Sampling::dry_breakers)
      .def_readwrite("mirostat", &Sampling::mirostat)
      .def_readwrite("mirostat_tau", &Sampling::mirostat_tau)
      .def_readwrite("mirostat_eta", &Sampling::mirostat_eta)
      .def_readwrite("logit_bias", &Sampling::logit_bias)
      .def_readwrite("banned", &Sampling::banned);
  py::class_<moeflux::Sampler>(m, "Sampler", "Chooses the tokens of one text.")
      .def(py::init([](const Model& model, const Sampling* sampling) {
             return sampling ? moeflux::Sampler(model, *sampling) : moeflux::Sampler(model);
           }),
           "model"_a, "sampling"_a = nullptr)
      .def(
          "read", [](const moeflux::Sampler& s, const std::vector<Token>& tokens) { s.read(tokens); },
          "tokens"_a, "The text so far, for the penalties.")
      .def("accept", &moeflux::Sampler::accept, "token"_a)
      .def(
          "sample",
          [](const moeflux::Sampler& s, const Logits& logits, uint64_t position, py::ssize_t row) {
            return s.sample(logits.row(row), position);
          },
          "logits"_a, "position"_a, "row"_a = -1,
          "The token for a position, from the logits of the one before it.");
}

void add_context(py::module_& m) {
  py::class_<Logits>(m, "Logits", py::buffer_protocol(),
                     "Rows of logits; numpy.asarray(logits) makes no copy.")
      .def_buffer([](Logits& l) {
        const auto width = static_cast<py::ssize_t>(l.n_vocab),
                   item = static_cast<py::ssize_t>(sizeof(float));
        return py::buffer_info(l.values.data(), item, py::format_descriptor<float>::format(), 2,
                               {static_cast<py::ssize_t>(l.rows()), width}, {width * item, item});
      })
      .def("__len__", &Logits::rows)
      .def(
          "argmax",
          [](const Logits& l, py::ssize_t row) {
            const std::span<const float> values = l.row(row);
            return std::max_element(values.begin(), values.end()) - values.begin();
          },
          "row"_a = -1, "The likeliest token of a row.");
  py::class_<moeflux::Result>(m, "Result")
      .def_readonly("text", &moeflux::Result::text)
      .def_readonly("tokens", &moeflux::Result::tokens)
      .def_property_readonly("finish",
                             [](const moeflux::Result& r) {
                               return r.finish == moeflux::Finish::Stop     ? "stop"
                                      : r.finish == moeflux::Finish::Length ? "length"
                                                                            : "cancelled";
                             })
      .def_readonly("stop_token", &moeflux::Result::stop_token)
      .def_readonly("at_stop_text", &moeflux::Result::at_stop_text)
      .def_readonly("n_prompt", &moeflux::Result::n_prompt)
      .def_readonly("n_reused", &moeflux::Result::n_reused)
      .def_readonly("prefill_seconds", &moeflux::Result::prefill_seconds)
      .def_readonly("decode_seconds", &moeflux::Result::decode_seconds)
      .def_readonly("bytes_read", &moeflux::Result::bytes_read)
      .def_readonly("n_guessed", &moeflux::Result::n_guessed)
      .def_readonly("n_right", &moeflux::Result::n_right);
  py::class_<moeflux::Cancel>(m, "Cancel",
                              "Any thread may set it; calls that were given it end after their step.")
      .def(py::init<>())
      .def("set", &moeflux::Cancel::set)
      .def("reset", &moeflux::Cancel::reset);
  py::class_<Stream, std::unique_ptr<Stream, DeleteReleased>>(
      m, "Stream", "The pieces of a text as they come; `result` is there when all have come.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__",
           [](Stream& stream) {
             std::optional<std::string> piece;
             {
               const py::gil_scoped_release released;
               piece = stream.next();
             }
             if (!piece) throw py::stop_iteration();
             return *piece;
           })
      .def("close", &Stream::close, Released(), "Ends the generation, and waits for its end.")
      .def_property_readonly("result", &Stream::result);

  const auto arguments = [](uint64_t max_tokens, uint64_t min_tokens, std::vector<std::string> stop,
                            std::string grammar, py::object json_schema, bool ignore_stop_tokens,
                            bool whole_text, bool continued, const moeflux::Sampling* sampling,
                            uint64_t draft, std::string draft_from, const moeflux::Cancel* cancel) {
    return GenerateArguments{max_tokens,
                             min_tokens,
                             std::move(stop),
                             std::move(grammar),
                             std::move(json_schema),
                             ignore_stop_tokens,
                             whole_text,
                             continued,
                             sampling,
                             draft,
                             std::move(draft_from),
                             cancel};
  };
  using On = std::function<py::object(const std::string&)>;
  using SharedContext = std::shared_ptr<Context>;
  py::class_<Context, SharedContext>(m, "Context", "Sequences of tokens on a model, numbered from 0.")
      .def(py::init([](const Model& model, uint64_t n_sequences, uint64_t checkpoint_every,
                       uint64_t checkpoint_bytes, uint64_t most_recompute) {
             return SharedContext(
                 new Context(model, {n_sequences, checkpoint_every, checkpoint_bytes, most_recompute}),
                 DeleteReleased());
           }),
           "model"_a, "n_sequences"_a = 1, py::kw_only(), "checkpoint_every"_a = 0, "checkpoint_bytes"_a = 0,
           "most_recompute"_a = 0)
      .def("close", &Context::close, Released())
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__",
           [](Context& context, const py::args&) {
             const py::gil_scoped_release released;
             context.close();
           })
      .def(
          "eval",
          [](const Context& context, const std::vector<Token>& tokens, const py::object& sequence,
             const std::optional<std::vector<bool>>& want_logits, const moeflux::Cancel* cancel) {
            moeflux::Batch batch{.tokens = tokens};
            if (py::isinstance<py::int_>(sequence))
              batch.sequences.assign(tokens.size(), sequence.cast<uint32_t>());
            else
              batch.sequences = sequence.cast<std::vector<uint32_t>>();
            if (want_logits) batch.want_logits.assign(want_logits->begin(), want_logits->end());
            const py::gil_scoped_release released;
            return Logits{context.eval(batch, cancel), context.n_vocab()};
          },
          "tokens"_a, "sequence"_a = 0, "want_logits"_a = py::none(), "cancel"_a = nullptr,
          "Evaluates tokens of one sequence, or of several: `sequence` is then a list with one for each "
          "token. Gives "
          "the logits that are wanted; by default those of the last token of each sequence.")
      .def("pos_max", &Context::pos_max, "sequence"_a = 0,
           "The last position; -1 where the sequence is empty.")
      .def("tokens", &Context::tokens, "sequence"_a = 0)
      .def("clear", &Context::clear, "sequence"_a = 0, Released())
      .def(
          "remove",
          [](const Context& context, uint64_t begin, std::optional<uint64_t> end, uint32_t sequence) {
            context.remove(begin, end.value_or(UINT64_MAX), sequence);
          },
          "begin"_a, "end"_a = py::none(), "sequence"_a = 0, Released(),
          "Forgets the tokens from `begin` up to `end`, or to the end; what is left is as if freshly "
          "evaluated.")
      .def("copy", &Context::copy, "source"_a, "target"_a, Released(),
           "Makes one sequence the same as another.")
      .def("checkpoint", &Context::checkpoint, "sequence"_a = 0, Released())
      .def("checkpoints", &Context::checkpoints, "sequence"_a = 0)
      .def("restore_to", &Context::restore_to, "position"_a, "sequence"_a = 0, Released(),
           "Goes back to a checkpoint's position.")
      .def(
          "save",
          [](const Context& context, uint32_t sequence) {
            std::vector<std::byte> bytes;
            {
              const py::gil_scoped_release released;
              bytes = context.save(sequence);
            }
            return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          "sequence"_a = 0, "A sequence's tokens and state as bytes.")
      .def(
          "load",
          [](const Context& context, const py::bytes& state, uint32_t sequence) {
            const std::string_view bytes = state;
            const py::gil_scoped_release released;
            context.load(std::as_bytes(std::span(bytes)), sequence);
          },
          "state"_a, "sequence"_a = 0)
      .def(
          "save_file",
          [](const Context& context, const std::filesystem::path& path, uint32_t sequence) {
            context.save(path, sequence);
          },
          "path"_a, "sequence"_a = 0, Released())
      .def(
          "load_file",
          [](const Context& context, const std::filesystem::path& path, uint32_t sequence) {
            context.load(path, sequence);
          },
          "path"_a, "sequence"_a = 0, Released())
      .def(
          "generate",
          [arguments](const Context& context, const std::vector<Token>& prompt, uint32_t sequence,
                      const On& on_text, uint64_t max_tokens, uint64_t min_tokens,
                      std::vector<std::string> stop, std::string grammar, py::object json_schema,
                      bool ignore_stop_tokens, bool whole_text, bool continued,
                      const moeflux::Sampling* sampling, const moeflux::Cancel* cancel, uint64_t draft,
                      std::string draft_from) {
            auto options = arguments(max_tokens, min_tokens, std::move(stop), std::move(grammar),
                                     std::move(json_schema), ignore_stop_tokens, whole_text, continued,
                                     sampling, draft, std::move(draft_from), cancel)
                               .options();
            if (on_text)
              options.on_text = [&](const moeflux::Piece& piece) {
                const py::gil_scoped_acquire held;
                const py::object answer = on_text(std::string(piece.text));
                return py::isinstance<py::bool_>(answer) && !answer.cast<bool>() ? moeflux::Next::Stop
                                                                                 : moeflux::Next::Continue;
              };
            const py::gil_scoped_release released;
            return context.generate(prompt, options, sequence);
          },
          "prompt"_a, "sequence"_a = 0, "on_text"_a = nullptr, py::kw_only(), "max_tokens"_a = 0,
          "min_tokens"_a = 0, "stop"_a = std::vector<std::string>{}, "grammar"_a = "",
          "json_schema"_a = py::none(), "ignore_stop_tokens"_a = false, "whole_text"_a = false,
          "continued"_a = false, "sampling"_a = nullptr, "cancel"_a = nullptr, "draft"_a = 0,
          "draft_from"_a = "auto",
          "Evaluates the prompt and generates text after it. on_text(piece) is called as it comes; False "
          "stops.")
      .def(
          "stream",
          [arguments](SharedContext context, const std::vector<Token>& prompt, uint32_t sequence,
                      uint64_t max_tokens, uint64_t min_tokens, std::vector<std::string> stop,
                      std::string grammar, py::object json_schema, bool ignore_stop_tokens, bool whole_text,
                      bool continued, const moeflux::Sampling* sampling, uint64_t draft,
                      std::string draft_from) {
            return std::unique_ptr<Stream, DeleteReleased>(
                new Stream(std::move(context), prompt, sequence,
                           arguments(max_tokens, min_tokens, std::move(stop), std::move(grammar),
                                     std::move(json_schema), ignore_stop_tokens, whole_text, continued,
                                     sampling, draft, std::move(draft_from), nullptr)
                               .options()));
          },
          "prompt"_a, "sequence"_a = 0, py::kw_only(), "max_tokens"_a = 0, "min_tokens"_a = 0,
          "stop"_a = std::vector<std::string>{}, "grammar"_a = "", "json_schema"_a = py::none(),
          "ignore_stop_tokens"_a = false, "whole_text"_a = false, "continued"_a = false,
          "sampling"_a = nullptr, "draft"_a = 0, "draft_from"_a = "auto",
          "The same as a generator of pieces of text. Leaving it early ends the generation.");
}

}  // namespace

PYBIND11_MODULE(moeflux, m) {
  m.doc() = "Runs Mixture-of-Experts language models that are larger than memory.";
  m.attr("__version__") = moeflux::version();
  m.attr("abi_version") = moeflux_abi_version();
  static py::exception<moeflux::Error> error(m, "Error");
  error.doc() = "What the library refuses or fails at; `status` names it, such as NOT_FOUND.";
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const moeflux::Error& e) {
      const py::object value = py::reinterpret_borrow<py::object>(error)(e.what());
      value.attr("status") = std::string(moeflux_status_name(e.status())).substr(sizeof "MOEFLUX_" - 1);
      PyErr_SetObject(error.ptr(), value.ptr());
    }
  });
  add_sampling(m);
  add_model(m);
  add_context(m);
}
