// A generation that somebody takes piece by piece: it runs on a thread of its own and stays at most one piece
// ahead.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "moeflux/moeflux.hpp"

class Stream {
 public:
  Stream(std::shared_ptr<moeflux::Context> context, std::vector<moeflux::Token> prompt, uint32_t sequence,
         moeflux::GenerateOptions options)
      : context_(std::move(context)) {
    options.cancel = &cancel_;
    options.on_text = [this](const moeflux::Piece& piece) { return give(std::string(piece.text)); };
    thread_ = std::thread([this, sequence, prompt = std::move(prompt), options = std::move(options)] {
      try {
        end(context_->generate(prompt, options, sequence), nullptr);
      } catch (...) {
        end({}, std::current_exception());
      }
    });
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { close(); }

  // The next piece that is not empty; nothing when all have been taken. Throws what the generation threw.
  std::optional<std::string> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return piece_ || ended_; });
    if (!piece_ && error_) std::rethrow_exception(std::exchange(error_, nullptr));
    std::optional<std::string> piece = std::exchange(piece_, std::nullopt);
    changed_.notify_all();
    return piece;
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      cancel_.set();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::optional<moeflux::Result> result() const {
    const std::lock_guard lock(mutex_);
    return result_;
  }

 private:
  moeflux::Next give(std::string text) {
    std::unique_lock lock(mutex_);
    if (text.empty()) return closed_ ? moeflux::Next::Cancel : moeflux::Next::Continue;
    changed_.wait(lock, [&] { return !piece_ || closed_; });
    if (closed_) return moeflux::Next::Cancel;
    piece_ = std::move(text);
    changed_.notify_all();
    return moeflux::Next::Continue;
  }

  void end(std::optional<moeflux::Result> result, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }

  std::shared_ptr<moeflux::Context> context_;
  moeflux::Cancel cancel_;
  mutable std::mutex mutex_;  // guards what follows but the thread
  std::condition_variable changed_;
  std::optional<std::string> piece_;
  std::optional<moeflux::Result> result_;
  std::exception_ptr error_;
  bool closed_ = false, ended_ = false;
  std::thread thread_;
};
