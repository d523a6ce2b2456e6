#include "jit/elf_build_id.h"

#include <elf.h>
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "jit/content_hash.h"

namespace bdcp::jit {
namespace {

constexpr std::size_t kLargestNote = 1 << 20;

bool read_at(std::ifstream& file, std::uint64_t offset, void* into, std::size_t bytes) {
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes));
  return file.gcount() == static_cast<std::streamsize>(bytes);
}

std::size_t padded(std::size_t bytes) { return (bytes + 3) & ~std::size_t{3}; }

std::string build_id_in_notes(const std::vector<char>& notes) {
  std::size_t at = 0;
  while (at + sizeof(Elf64_Nhdr) <= notes.size()) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data() + at, sizeof(note));
    const std::size_t name = at + sizeof(note);
    const std::size_t id = name + padded(note.n_namesz);
    if (note.n_namesz > notes.size() || note.n_descsz > notes.size() || id + note.n_descsz > notes.size())
      break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes.data() + name, "GNU", 4) == 0) {
      std::string hex;
      for (std::size_t i = 0; i < note.n_descsz; ++i)
        hex += fmt::format("{:02x}", static_cast<unsigned char>(notes[id + i]));
      return hex;
    }
    at = id + padded(note.n_descsz);
  }
  return {};
}

}  // namespace

std::string build_id_of(const std::string& path, std::string* why) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file || !read_at(file, 0, &header, sizeof(header))) {
    if (why) *why = fmt::format("'{}' cannot be read", path);
    return {};
  }
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    if (why) *why = fmt::format("'{}' is not a 64-bit ELF file", path);
    return {};
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_at(file, header.e_phoff + i * sizeof(segment), &segment, sizeof(segment))) break;
    if (segment.p_type != PT_NOTE || segment.p_filesz > kLargestNote) continue;
    std::vector<char> notes(segment.p_filesz);
    if (!read_at(file, segment.p_offset, notes.data(), notes.size())) continue;
    if (std::string id = build_id_in_notes(notes); !id.empty()) return id;
  }
  file.clear();
  file.seekg(0);
  std::ostringstream bytes;
  if (!(bytes << file.rdbuf())) {  // an iterator would throw what the file buffer throws
    if (why) *why = fmt::format("'{}' cannot be read to its end", path);
    return {};
  }
  return "xxh3-" + content_hash(bytes.str());
}

}  // namespace bdcp::jit
