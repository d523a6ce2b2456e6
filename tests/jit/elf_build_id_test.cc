#include "jit/elf_build_id.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

#include "jit/support.h"

namespace bdcp::jit {
namespace {

using testing::TempDir;
using testing::write_file;

// The smallest file with a note segment: ELF header, one program header, notes.
std::string elf_with_notes(const std::string& notes) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  header.e_phoff = sizeof(header);
  Elf64_Phdr segment = {};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof(header) + sizeof(segment);
  segment.p_filesz = notes.size();
  return std::string(reinterpret_cast<char*>(&header), sizeof(header)) +
         std::string(reinterpret_cast<char*>(&segment), sizeof(segment)) + notes;
}

std::string note(std::uint32_t type, const std::string& name, const std::string& text) {
  const Elf64_Nhdr header{static_cast<Elf64_Word>(name.size()), static_cast<Elf64_Word>(text.size()), type};
  auto pad = [](std::string part) { return part + std::string((4 - part.size() % 4) % 4, '\0'); };
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + pad(name) + pad(text);
}

TEST(BuildId, ReadsTheGnuNoteBehindOthers) {
  TempDir dir;
  write_file(
      dir.path() / "lib.so",
      elf_with_notes(note(5, "other", "x") + note(NT_GNU_BUILD_ID, std::string("GNU\0", 4), "\x01\xab\xff")));
  EXPECT_EQ(build_id_of(dir.str() + "/lib.so", nullptr), "01abff");
}

TEST(BuildId, WithoutOneTheContentCounts) {
  TempDir dir;
  write_file(dir.path() / "a.so", elf_with_notes(note(5, "other", "x")));
  write_file(dir.path() / "b.so", elf_with_notes(note(5, "other", "y")));
  const std::string a = build_id_of(dir.str() + "/a.so", nullptr);
  EXPECT_TRUE(a.starts_with("xxh3-")) << a;
  EXPECT_NE(a, build_id_of(dir.str() + "/b.so", nullptr));
}

TEST(BuildId, SurvivesLengthsThatLie) {
  TempDir dir;
  std::string notes = note(NT_GNU_BUILD_ID, std::string("GNU\0", 4), "abcd");
  notes[4] = '\xff';  // descsz
  notes[5] = notes[6] = notes[7] = '\xff';
  write_file(dir.path() / "lib.so", elf_with_notes(notes));
  EXPECT_TRUE(build_id_of(dir.str() + "/lib.so", nullptr).starts_with("xxh3-"));
}

TEST(BuildId, NamesFilesThatAreNoLibrary) {
  TempDir dir;
  write_file(dir.path() / "text", std::string(100, 'x'));
  for (const char* name : {"text", "absent"}) {
    std::string why;
    EXPECT_EQ(build_id_of((dir.path() / name).string(), &why), "");
    EXPECT_NE(why.find(name), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace bdcp::jit
