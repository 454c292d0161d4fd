//! Sanitizers of compilers, by the symbols of their runtimes. `elf` looks for one in a program.

/// A sanitizer of a compiler whose runtime has a malloc of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// `-fsanitize=address`
    Address,
    /// `-fsanitize=thread`
    Thread,
    /// `-fsanitize=memory`
    Memory,
}

impl Sanitizer {
    /// The sanitizer whose initialization has this name: a program imports or exports it.
    pub fn of_symbol(name: &[u8]) -> Option<Self> {
        match name {
            b"__asan_init" => Some(Sanitizer::Address),
            b"__tsan_init" => Some(Sanitizer::Thread),
            b"__msan_init" => Some(Sanitizer::Memory),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "AddressSanitizer",
            Sanitizer::Thread => "ThreadSanitizer",
            Sanitizer::Memory => "MemorySanitizer",
        }
    }

    /// The option of compilers that builds a program with it.
    pub fn option(self) -> &'static str {
        match self {
            Sanitizer::Address => "-fsanitize=address",
            Sanitizer::Thread => "-fsanitize=thread",
            Sanitizer::Memory => "-fsanitize=memory",
        }
    }
}
