#include "io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/checked.h"

namespace moeflux {
namespace {

Fd open_or_fail(const fs::path& path, int flags, const char* what) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) fail_errno(errno, fmt::format("{}: {}", path.string(), what));
  return Fd(fd);
}

}  // namespace

File File::open_read(const fs::path& path) {
  File file(open_or_fail(path, O_RDONLY, "cannot open"), path);
  struct stat st;
  if (fstat(file.fd(), &st) != 0) fail_errno(errno, path.string());
  if (!S_ISREG(st.st_mode)) fail(Errc::InvalidArgument, "{}: not a regular file", path.string());
  return file;
}

std::optional<File> File::open_direct(const fs::path& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (fd.get() < 0) return std::nullopt;
  return File(std::move(fd), path);
}

File File::create(const fs::path& path) {
  return {open_or_fail(path, O_RDWR | O_CREAT | O_TRUNC, "cannot create"), path};
}

File File::open_write(const fs::path& path) {
  return {open_or_fail(path, O_RDWR | O_CREAT, "cannot open for writing"), path};
}

uint64_t File::size() const {
  struct stat st;
  if (fstat(fd(), &st) != 0) fail_errno(errno, path_.string());
  return static_cast<uint64_t>(st.st_size);
}

void File::read_at(uint64_t offset, std::span<std::byte> into) const {
  for (size_t done = 0; done < into.size();) {
    const ssize_t n = pread(fd(), into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail_errno(errno,
                 fmt::format("{}: reading bytes {}..{}", path_.string(), offset, offset + into.size()));
    if (n == 0)
      fail(Errc::Corrupt, "{}: bytes {}..{} are wanted, but the file ends at {}", path_.string(), offset,
           offset + into.size(), offset + done);
    done += static_cast<size_t>(n);
  }
}

void File::write_at(uint64_t offset, std::span<const std::byte> from) const {
  for (size_t done = 0; done < from.size();) {
    const ssize_t n = pwrite(fd(), from.data() + done, from.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail_errno(errno,
                 fmt::format("{}: writing bytes {}..{}", path_.string(), offset, offset + from.size()));
    done += static_cast<size_t>(n);
  }
}

void File::append(std::string_view text) const { write_at(size(), std::as_bytes(std::span(text))); }

void File::resize(uint64_t bytes) const {
  if (ftruncate(fd(), static_cast<off_t>(bytes)) != 0)
    fail_errno(errno, fmt::format("{}: resizing to {} bytes", path_.string(), bytes));
  // Reserving now turns a full disk into an early error; file systems that cannot reserve report it later.
  if (bytes > 0 && fallocate(fd(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno == ENOSPC)
    fail_errno(ENOSPC, fmt::format("{}: reserving {} bytes", path_.string(), bytes));
}

void File::start_writeback(uint64_t offset, uint64_t bytes) const {
  sync_file_range(fd(), static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void File::sync() const {
  if (fdatasync(fd()) != 0) fail_errno(errno, fmt::format("{}: sync", path_.string()));
}

bool File::try_lock() const {
  if (flock(fd(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) fail_errno(errno, fmt::format("{}: locking", path_.string()));
  return false;
}

std::string read_text(const fs::path& path, uint64_t most_bytes) {
  const File file = File::open_read(path);
  const uint64_t bytes = file.size();
  if (bytes > most_bytes)
    fail(Errc::Corrupt, "{}: {} bytes, more than the {} that such a file may have", path.string(), bytes,
         most_bytes);
  std::string text(bytes, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const fs::path& path, std::string_view text) {
  const File file = File::create(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.sync();
}

void sync_folder(const fs::path& folder) {
  const Fd fd = open_or_fail(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY, "cannot open");
  if (fsync(fd.get()) != 0) fail_errno(errno, fmt::format("{}: sync", folder.string()));
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail_errno(errno, fmt::format("renaming {} to {}", from.string(), to.string()));
  sync_folder(to.parent_path());
}

}  // namespace moeflux
