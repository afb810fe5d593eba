/*
 * moeflux as a library: runs Mixture-of-Experts language models that are larger than memory. docs/LIBRARY.md
 * shows every call by example; moeflux.hpp is the same for C++.
 *
 * Handles. Models, contexts, samplers and cancels are handles: opaque, made by the library, given back to it.
 * A handle is never reused: one that is null, closed, of another kind or made up gives MOEFLUX_INVALID_HANDLE
 * and nothing else. What a handle stands for lives as long as somebody uses it: a model may be closed before
 * its contexts and samplers, and all may be closed while a call of another thread is still at work with them.
 *
 * Errors. Functions return a status. moeflux_last_error() says in words what went wrong. A call that fails
 * has changed nothing, but for what its comment says. No exception ever leaves the library.
 *
 * Structs begin with their size, which the caller sets, so that they can grow: the rest is zero for the
 * default, or filled by the function that the comment names. A size that is smaller than the first version of
 * a struct, or larger than the library knows with anything but zeros in what it does not know, is refused.
 *
 * Memory. Texts and tokens that a function hands out through a pointer to a pointer belong to the caller, who
 * gives them to moeflux_free(). Texts are UTF-8, end with a zero, and their length does not count it.
 *
 * Threads. Every function may be called by any thread. Models and cancels may be used by many at once; a
 * context or a sampler serves one call at a time, and a second one gets MOEFLUX_BUSY. Steps of several
 * contexts of one model take turns. Models share nothing.
 */
#ifndef MOEFLUX_MOEFLUX_H
#define MOEFLUX_MOEFLUX_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MOEFLUX_API __attribute__((visibility("default")))
#else
#define MOEFLUX_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes only when a program that was built with an older header would no longer work. */
#define MOEFLUX_ABI_VERSION 1

MOEFLUX_API uint32_t moeflux_abi_version(void); /* of the library that was found at run time */
MOEFLUX_API const char* moeflux_version(void);  /* "0.1.0" */

/* ---- Errors
 * ------------------------------------------------------------------------------------------------------ */

typedef int32_t moeflux_status;

enum {
  MOEFLUX_OK = 0,
  MOEFLUX_NOT_FOUND = 1,        /* a file, or a part that this package does not have */
  MOEFLUX_EXISTS = 2,           /* a file that would be overwritten */
  MOEFLUX_CORRUPT = 3,          /* a file whose content cannot be right */
  MOEFLUX_UNSUPPORTED = 4,      /* known, but not done by this library, backend or model */
  MOEFLUX_INVALID_ARGUMENT = 5, /* a value that makes no sense; the message names it */
  MOEFLUX_IO = 6,               /* the system could not read or write */
  MOEFLUX_NO_SPACE = 7,         /* a disk is full */
  MOEFLUX_OUT_OF_MEMORY = 8,    /* too little memory, or a budget that cannot be kept */
  MOEFLUX_DEVICE = 9,           /* the GPU or its driver */
  MOEFLUX_INVALID_HANDLE = 10,  /* null, closed, of another kind, or none of ours */
  MOEFLUX_BUSY = 11,            /* another call is at work with this context or sampler */
  MOEFLUX_CANCELLED = 12,       /* through a cancel or a callback */
  MOEFLUX_TOO_SMALL = 13,       /* a buffer of the caller's; the message says how much it needs */
  MOEFLUX_BROKEN = 14,          /* a step of this sequence failed half-way: clear it or restore it */
  MOEFLUX_INTERNAL = 15         /* a bug in the library */
};

MOEFLUX_API const char* moeflux_status_name(moeflux_status status); /* "MOEFLUX_OK"; never null */
/* Of the calling thread's last call that failed; valid until its next call that fails. Never null. */
MOEFLUX_API const char* moeflux_last_error(void);

/* Takes what the library has handed out; null is fine. */
MOEFLUX_API void moeflux_free(void* memory);

/* ---- Models
 * ------------------------------------------------------------------------------------------------------ */

typedef struct moeflux_model moeflux_model;
typedef uint32_t moeflux_token;

enum { MOEFLUX_UNIT_BYTES = 0, MOEFLUX_UNIT_TOKENS = 1 };

typedef struct moeflux_progress {
  size_t size;
  const char* what; /* "loading" */
  uint64_t done, total;
  int32_t unit;
  int32_t ended; /* the last report of this piece of work, whether it succeeded or not */
} moeflux_progress;

enum { MOEFLUX_LOG_INFO = 0, MOEFLUX_LOG_WARNING = 1 };

/* Called now and then while something takes long, by the thread that does the work, one call at a time. */
typedef void (*moeflux_progress_fn)(void* user, const moeflux_progress* progress);
/* Called by any thread, one call at a time. Without it nothing is said: the library never writes to stderr.
 */
typedef void (*moeflux_log_fn)(void* user, int32_t level, const char* message);

typedef struct moeflux_open_options {
  size_t size;
  const char* backend;        /* "cpu", "cuda", "cpu-ref", or "auto" (null): the fastest that can run here */
  const char* precision;      /* "fast" (null) or "exact" */
  const char* kv;             /* "f32", "bf16", "q8"; null: bf16 in fast precision, f32 in exact */
  const char* isa;            /* an instruction set; null: the best of this processor */
  uint64_t ram_bytes;         /* of expert slots in memory; 0: what is available */
  uint64_t vram_bytes;        /* of expert slots on the GPU; 0: what is available */
  double vram_share;          /* in place of vram_bytes: of all experts, 0 to 1 */
  uint64_t max_memory_bytes;  /* cap on the host's memory in all; 0: what is available */
  uint64_t ctx;               /* tokens that one sequence can hold; 0: the model's, at most 4096 */
  uint64_t sequences;         /* whole contexts for which memory is kept; 0: one */
  uint64_t chunk;             /* prompt tokens of a step; 0: 2048 */
  uint32_t threads;           /* that compute; 0: one per core */
  uint32_t no_read_checks;    /* 1: do not verify the checksum of each expert that is read */
  const char* const* stripes; /* further folders with expert files */
  size_t n_stripes;
  moeflux_progress_fn on_progress; /* may be called until the model is closed */
  moeflux_log_fn on_log;           /* likewise */
  void* user;                      /* for both */
} moeflux_open_options;

/* Opens a package, as `moeflux convert` makes it. `options` may be null. */
MOEFLUX_API moeflux_status moeflux_open(const char* package, const moeflux_open_options* options,
                                        moeflux_model** model);
/* Its memory goes with the last context and sampler of it. */
MOEFLUX_API moeflux_status moeflux_close(moeflux_model* model);

/* Reads all experts now, where there is memory for all; otherwise they come as they are needed. */
MOEFLUX_API moeflux_status moeflux_load_experts(moeflux_model* model);

typedef struct moeflux_model_info {
  size_t size;
  uint64_t n_vocab; /* logits of a position */
  uint64_t n_layers, d_model;
  uint64_t n_experts, top_k; /* of a layer, and how many a token uses */
  uint64_t ctx;              /* tokens that one sequence can hold */
  uint64_t sequences;        /* whole contexts for which memory is kept */
  uint64_t chunk, threads;
  uint32_t has_tokenizer, has_template;
  char family[32], backend[16], precision[16];
} moeflux_model_info;

MOEFLUX_API moeflux_status moeflux_get_info(moeflux_model* model, moeflux_model_info* info);

/* Where everything of the model is, and what a token costs. All in bytes but the last two. */
typedef struct moeflux_plan {
  size_t size;
  uint64_t resident_bytes, kv_bytes, overhead_bytes;
  uint64_t expert_bytes;                                    /* of all experts */
  uint64_t vram_slot_bytes, ram_slot_bytes, ssd_only_bytes; /* where they are */
  uint64_t host_bytes, device_bytes;                        /* in all */
  uint64_t token_resident_bytes, token_expert_bytes;        /* touched for a token */
  uint64_t token_missed_bytes; /* of these, read from disk if routing were uniform */
  uint64_t parameters, active_parameters;
} moeflux_plan;

MOEFLUX_API moeflux_status moeflux_get_plan(moeflux_model* model, moeflux_plan* plan);
MOEFLUX_API moeflux_status moeflux_plan_json(moeflux_model* model, char** json);

/* What the store of experts has done since the model was opened. */
typedef struct moeflux_stats {
  size_t size;
  uint64_t hits, misses; /* experts asked for that were in memory, and that were not */
  uint64_t reads, bytes_read;
  double stall_seconds; /* in which a step had nothing to compute but waited for experts */
  uint64_t stall_bytes; /* that arrived in that time */
  uint64_t prefetched, prefetch_useful, prefetch_late, prefetch_wasted;
  uint64_t failed;        /* experts whose read failed */
  uint64_t steps, tokens; /* that were evaluated, of all contexts */
} moeflux_stats;

MOEFLUX_API moeflux_status moeflux_get_stats(moeflux_model* model, moeflux_stats* stats);
MOEFLUX_API moeflux_status moeflux_stats_json(moeflux_model* model, char** json);

/* ---- Text and tokens
 * --------------------------------------------------------------------------------------------- */

enum {
  MOEFLUX_TEXT_START = 1,   /* tokenize: with what stands before every text (in some models, a token) */
  MOEFLUX_TEXT_MARKERS = 2, /* tokenize: text that looks like a marker such as <|im_start|> is that token */
  MOEFLUX_TEXT_PLAIN = 4    /* detokenize: special tokens give no text */
};

MOEFLUX_API moeflux_status moeflux_tokenize(moeflux_model* model, const char* text, size_t n_bytes,
                                            uint32_t flags, moeflux_token** tokens, size_t* n_tokens);
MOEFLUX_API moeflux_status moeflux_detokenize(moeflux_model* model, const moeflux_token* tokens,
                                              size_t n_tokens, uint32_t flags, char** text, size_t* n_bytes);
/* What a token stands for inside a text: bytes, that may be a part of a character. */
MOEFLUX_API moeflux_status moeflux_token_bytes(moeflux_model* model, moeflux_token token, char** bytes,
                                               size_t* n_bytes);
/* A token by its text or number; MOEFLUX_INVALID_ARGUMENT where the text is not one token. */
MOEFLUX_API moeflux_status moeflux_find_token(moeflux_model* model, const char* name, moeflux_token* token);
/* The tokens that end a text. */
MOEFLUX_API moeflux_status moeflux_stop_tokens(moeflux_model* model, moeflux_token** tokens,
                                               size_t* n_tokens);

/* A conversation, as the chat completions API of servers has it. */
typedef struct moeflux_chat {
  size_t size;
  const char* messages_json;  /* [{"role": "user", "content": "Hello"}] */
  const char* tools_json;     /* an array, or null */
  const char* variables_json; /* an object with further variables of the template, or null */
  uint32_t no_answer;         /* 1: do not end with the beginning of the model's answer */
  uint32_t reserved;          /* 0 */
} moeflux_chat;

/* The text that the model reads for a conversation, by the package's own template. */
MOEFLUX_API moeflux_status moeflux_apply_template(moeflux_model* model, const moeflux_chat* chat, char** text,
                                                  size_t* n_bytes);
/* Its tokens. Other than tokenizing that text, markers that somebody wrote in a message stay text. */
MOEFLUX_API moeflux_status moeflux_chat_tokens(moeflux_model* model, const moeflux_chat* chat,
                                               moeflux_token** tokens, size_t* n_tokens);
/* Takes an answer apart: {"text": ..., "reasoning": ..., "tool_calls": [...]}. `chat` is what it answers. */
MOEFLUX_API moeflux_status moeflux_parse_answer(moeflux_model* model, const moeflux_chat* chat,
                                                const char* answer, size_t n_bytes, char** json);

/* ---- Sampling
 * ---------------------------------------------------------------------------------------------------- */

typedef struct moeflux_sampler moeflux_sampler;

typedef struct moeflux_bias {
  double bias; /* added to the logit */
  moeflux_token token;
  uint32_t reserved; /* 0 */
} moeflux_bias;

/* docs/SAMPLING.md states the order of the filters and each formula. moeflux_sampling_defaults() fills it. */
typedef struct moeflux_sampling {
  size_t size;
  uint64_t seed;      /* the same seed gives the same tokens; the defaults have a new one each time */
  double temperature; /* 0: the likeliest token */
  uint64_t top_k;     /* 0: off */
  double top_p;       /* 1: off */
  double min_p;       /* 0: off */
  double typical_p;   /* 1: off */
  double top_n_sigma; /* 0: off */
  double xtc_probability, xtc_threshold;
  double repetition_penalty; /* 1: off */
  double frequency_penalty, presence_penalty;
  uint64_t penalty_window; /* the last tokens that the penalties see; UINT64_MAX: all */
  double dry_multiplier;   /* 0: off */
  double dry_base;
  uint64_t dry_allowed_length, dry_window;
  const char* const* dry_breakers; /* null: new lines, colons, quotes and stars */
  size_t n_dry_breakers;
  uint32_t mirostat; /* 1: on */
  uint32_t reserved; /* 0 */
  double mirostat_tau, mirostat_eta;
  const moeflux_bias* logit_bias;
  size_t n_logit_bias;
  const moeflux_token* banned;
  size_t n_banned;
} moeflux_sampling;

/* The defaults of the package's generation_config.json. Set `size` before. */
MOEFLUX_API moeflux_status moeflux_sampling_defaults(moeflux_model* model, moeflux_sampling* sampling);

/* Chooses tokens of one text. `sampling` may be null: the model's own defaults. */
MOEFLUX_API moeflux_status moeflux_sampler_new(moeflux_model* model, const moeflux_sampling* sampling,
                                               moeflux_sampler** sampler);
MOEFLUX_API moeflux_status moeflux_sampler_free(moeflux_sampler* sampler);
/* The text so far, for the penalties: what the model was given, and each token that was chosen. */
MOEFLUX_API moeflux_status moeflux_sampler_read(moeflux_sampler* sampler, const moeflux_token* tokens,
                                                size_t n_tokens);
MOEFLUX_API moeflux_status moeflux_sampler_accept(moeflux_sampler* sampler, moeflux_token token);
/* The token for `position`, counted from the start of the text, from the logits of the token before it. Does
 * not accept it. `n_logits` is the model's n_vocab. */
MOEFLUX_API moeflux_status moeflux_sampler_sample(moeflux_sampler* sampler, const float* logits,
                                                  size_t n_logits, uint64_t position, moeflux_token* token);

/* ---- Cancelling
 * -------------------------------------------------------------------------------------------------- */

/* A flag that any thread may set at any moment, before or while calls that were given it are at work. They
 * end with MOEFLUX_CANCELLED, or as a cancelled generation, after the step that they are in: one token, or
 * one chunk of a prompt. What was evaluated by then stays. */
typedef struct moeflux_cancel moeflux_cancel;

MOEFLUX_API moeflux_status moeflux_cancel_new(moeflux_cancel** cancel);
MOEFLUX_API moeflux_status moeflux_cancel_set(moeflux_cancel* cancel);
MOEFLUX_API moeflux_status moeflux_cancel_reset(moeflux_cancel* cancel);
MOEFLUX_API moeflux_status moeflux_cancel_free(moeflux_cancel* cancel);

/* ---- Contexts: sequences of tokens
 * ------------------------------------------------------------------------------- */

/* A set of sequences, numbered from 0, that are evaluated together or one by one. A sequence is empty until
 * tokens are evaluated for it. Freeing a context cancels what is at work with it. */
typedef struct moeflux_context moeflux_context;

typedef struct moeflux_context_options {
  size_t size;
  uint64_t n_sequences; /* 0: one */
  /* For models whose state cannot go back by itself (recurrent layers, windows): checkpoints of each
   * sequence. */
  uint64_t checkpoint_every; /* tokens between those that are made by themselves; 0: 1024; UINT64_MAX: none */
  uint64_t checkpoint_bytes; /* of a sequence's checkpoints, beside what its text needs; 0: 1 GiB */
  uint64_t most_recompute;   /* tokens that going back may evaluate again; 0: as many as it takes */
} moeflux_context_options;

/* `options` may be null. */
MOEFLUX_API moeflux_status moeflux_context_new(moeflux_model* model, const moeflux_context_options* options,
                                               moeflux_context** context);
MOEFLUX_API moeflux_status moeflux_context_free(moeflux_context* context);

/* Tokens of one or several sequences, in any order; those of one sequence go on from where it is. */
typedef struct moeflux_batch {
  size_t size;
  size_t n_tokens;
  const moeflux_token* tokens;
  const uint32_t* sequences; /* [n_tokens]: of each token; null: all of sequence 0 */
  const uint8_t*
      want_logits; /* [n_tokens]: 1 for tokens whose logits are wanted; null: the last one of each sequence */
  moeflux_cancel* cancel; /* or null */
} moeflux_batch;

/* Evaluates a batch. `logits`: [number of tokens whose logits are wanted, n_vocab], in the order of these
 * tokens in the batch; `n_logits` is how many floats there is room for; may be null with 0 where none are
 * wanted. What is wrong with the batch is found before anything is evaluated. A step that fails half-way (a
 * read error) breaks the sequences that it worked on, and no others. */
MOEFLUX_API moeflux_status moeflux_eval(moeflux_context* context, const moeflux_batch* batch, float* logits,
                                        size_t n_logits);

/* ---- Sequences
 * --------------------------------------------------------------------------------------------------- */

/* The last position of a sequence; -1 where it is empty. */
MOEFLUX_API moeflux_status moeflux_seq_pos_max(moeflux_context* context, uint32_t sequence,
                                               int64_t* position);
MOEFLUX_API moeflux_status moeflux_seq_tokens(moeflux_context* context, uint32_t sequence,
                                              moeflux_token** tokens, size_t* n_tokens);
/* Forgets everything, and gives the sequence's memory back. */
MOEFLUX_API moeflux_status moeflux_seq_clear(moeflux_context* context, uint32_t sequence);
/* Forgets the tokens from position `begin` up to `end`, which may lie beyond the last one (UINT64_MAX). What
 * is left has the state of a fresh evaluation: where that cannot be had by cutting, it is computed again from
 * the nearest checkpoint; MOEFLUX_UNSUPPORTED where that would be more than most_recompute tokens. */
MOEFLUX_API moeflux_status moeflux_seq_remove(moeflux_context* context, uint32_t sequence, uint64_t begin,
                                              uint64_t end);
/* Makes `to` the same as `from`, in place of what it held. Memory is shared until they differ. */
MOEFLUX_API moeflux_status moeflux_seq_copy(moeflux_context* context, uint32_t from, uint32_t to);
/* Keeps the state of this position, so that it can be gone back to without evaluating anything. */
MOEFLUX_API moeflux_status moeflux_seq_checkpoint(moeflux_context* context, uint32_t sequence);
/* How many tokens the sequence had at each of its checkpoints, in ascending order. */
MOEFLUX_API moeflux_status moeflux_seq_checkpoints(moeflux_context* context, uint32_t sequence,
                                                   uint64_t** positions, size_t* n_positions);
/* Goes back to a checkpoint; MOEFLUX_NOT_FOUND where there is none of that many tokens. */
MOEFLUX_API moeflux_status moeflux_seq_restore_to(moeflux_context* context, uint32_t sequence,
                                                  uint64_t position);

/* A sequence's tokens and state as bytes, for a later process with the same package, precision and KV type
 * (docs/FORMAT.md). Damaged bytes and those of another model or setting are refused with the reason, before
 * anything changes. */
MOEFLUX_API moeflux_status moeflux_state_size(moeflux_context* context, uint32_t sequence, size_t* n_bytes);
MOEFLUX_API moeflux_status moeflux_state_save(moeflux_context* context, uint32_t sequence, void* buffer,
                                              size_t n_bytes, size_t* n_written);
MOEFLUX_API moeflux_status moeflux_state_load(moeflux_context* context, uint32_t sequence, const void* buffer,
                                              size_t n_bytes);
/* The file appears whole or not at all. */
MOEFLUX_API moeflux_status moeflux_state_save_file(moeflux_context* context, uint32_t sequence,
                                                   const char* path);
MOEFLUX_API moeflux_status moeflux_state_load_file(moeflux_context* context, uint32_t sequence,
                                                   const char* path);

/* ---- Generation
 * -------------------------------------------------------------------------------------------------- */

enum { MOEFLUX_CONTINUE = 0, MOEFLUX_STOP = 1, MOEFLUX_CANCEL = 2 }; /* what a callback answers */

typedef struct moeflux_chance {
  double logprob; /* natural, of the model's own distribution; -infinity where it rules the token out */
  moeflux_token token;
  uint32_t reserved;
} moeflux_chance;

typedef struct moeflux_piece {
  size_t size;
  const char* text; /* whole characters; often empty, since text that may become a stop string is held back */
  size_t n_bytes;
  uint32_t has_token; /* 0 for text that was held back to the end */
  moeflux_token token;
  double logprob; /* where logprobs are wanted, else 0 */
  const moeflux_chance* top;
  size_t n_top;
} moeflux_piece;

/* On the thread that generates; may call any function, but none on this context. */
typedef int32_t (*moeflux_text_fn)(void* user, const moeflux_piece* piece);
/* How much of the prompt has been evaluated, chunk by chunk. */
typedef int32_t (*moeflux_prompt_fn)(void* user, size_t done, size_t total);

/* Where guesses of the next tokens come from. */
enum {
  MOEFLUX_DRAFT_AUTO = 0,  /* the multi-token-prediction layer where there is one, else the text so far */
  MOEFLUX_DRAFT_NGRAM = 1, /* the text so far */
  MOEFLUX_DRAFT_MTP = 2    /* the multi-token-prediction layer; an error where there is none */
};

typedef struct moeflux_generate_options {
  size_t size;
  const moeflux_sampling* sampling; /* null: the model's own defaults */
  uint64_t max_tokens;              /* 0: until the model ends its text or the context is full */
  uint64_t min_tokens;              /* the model cannot end its text before */
  uint32_t ignore_stop_tokens;      /* 1: it never can */
  uint32_t whole_text;     /* 1: the prompt is the whole text. What the sequence holds of it already is kept,
                              and whatever else it holds is removed */
  const char* const* stop; /* texts before which to end */
  size_t n_stop;
  const char* grammar;     /* only text that this grammar (GBNF) allows, or null */
  const char* json_schema; /* only JSON that this schema allows, or null */
  uint32_t continued;     /* 1: the new text goes on inside the prompt's, rather than being an answer to it */
  uint32_t want_logprobs; /* 1: of each new token and the n_top likeliest */
  uint64_t n_top;
  moeflux_text_fn on_text;     /* or null */
  moeflux_prompt_fn on_prompt; /* or null */
  void* user;                  /* for both */
  moeflux_cancel* cancel;      /* or null */
  /* Guesses at most so many tokens ahead, which are evaluated together and taken back where they are wrong;
     0: none. It pauses while that is slower. */
  uint64_t draft;
  uint32_t draft_from; /* MOEFLUX_DRAFT_AUTO, .. */
} moeflux_generate_options;

enum { MOEFLUX_FINISH_STOP = 0, MOEFLUX_FINISH_LENGTH = 1, MOEFLUX_FINISH_CANCELLED = 2 };

typedef struct moeflux_result {
  size_t size;
  char* text; /* up to a stop string */
  size_t n_bytes;
  moeflux_token* tokens; /* without the stop token */
  size_t n_tokens;
  int32_t finish;
  uint32_t has_stop_token;
  moeflux_token stop_token;
  uint32_t has_stop_text;
  uint64_t n_prompt, n_reused; /* tokens of the prompt, and of these, those that had been evaluated before */
  double prefill_seconds, decode_seconds;
  uint64_t bytes_read;
  uint64_t n_guessed, n_right; /* tokens that were guessed, and of these, those that were chosen */
} moeflux_result;

/* Evaluates the prompt (at least one token) after what the sequence holds, and then new tokens, one by one. A
 * package without a tokenizer gives tokens and no text. `options` and `result` may be null. A generation that
 * is cancelled has succeeded, with what it had by then. The sequence then holds the prompt and all new
 * tokens; the last one is evaluated when something follows it. A failed read breaks the sequence. */
MOEFLUX_API moeflux_status moeflux_generate(moeflux_context* context, uint32_t sequence,
                                            const moeflux_token* prompt, size_t n_prompt,
                                            const moeflux_generate_options* options, moeflux_result* result);
/* Frees what a result holds, not the struct itself. */
MOEFLUX_API void moeflux_result_free(moeflux_result* result);

#ifdef __cplusplus
}
#endif

#endif
