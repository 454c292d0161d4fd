//! The memory of a running process.
//!
//! `process_vm_readv` reads it; where a seccomp filter forbids that call, `/proc/PID/mem`. Neither
//! stops the process or runs code in it. `/proc/PID/pagemap` says which pages were ever touched:
//! the others are not read, since a read would make the kernel build page tables for them.
//!
//! The kernel checks who may read when a file of `/proc/PID` is opened, not when it is read. So a
//! process that may open them can pass them on to one that may not: [`Process::with_files`].

use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::memory::{self, Fault, Map, Memory, PAGE};
use crate::proc_text;

/// Pages whose state is asked for at a time.
const PAGEMAP_BATCH: u64 = 8192;
/// Most threads whose states are read.
const THREADS_MAX: usize = 1024;
/// Most parts that the kernel takes in one call.
const PARTS_MAX: usize = 1024;
/// Bits of an entry of `pagemap`: the page is in memory, or swapped out.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Bit of an entry of `pagemap`: a page of a file, or shared.
const FILE: u64 = 1 << 61;

/// Which pages of mapped files count as touched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    /// All of them.
    Whole,
    /// Those that were.
    Touched,
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    name: String,
    maps: Vec<Map>,
    /// Reads memory where the system call is forbidden.
    mem: Option<File>,
    pagemap: Option<File>,
    /// The files `maps` and `smaps`, if another process opened them.
    lists: Option<[File; 2]>,
}

/// Open files of `/proc/PID`.
#[derive(Debug)]
pub struct OpenFiles {
    /// `mem`: the memory.
    pub mem: File,
    /// `pagemap`: which pages were ever touched.
    pub pagemap: File,
    /// `maps`: the mappings.
    pub maps: File,
    /// `smaps`: the mappings with their resident bytes.
    pub smaps: File,
}

impl Process {
    /// Opens a process for reading.
    ///
    /// # Errors
    ///
    /// If there is no such process, it has no memory, or the system forbids reading it.
    pub fn open(pid: i32) -> Result<Self> {
        let mut process = Self::named(pid)?;
        process.pagemap = File::open(format!("/proc/{pid}/pagemap")).ok();
        process.read_maps()?;
        process.check_access()?;
        Ok(process)
    }

    /// A process whose files another process opened, which may read it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// ```
    /// use std::fs::File;
    /// use uslub_inspect::Process;
    /// use uslub_inspect::process::OpenFiles;
    ///
    /// let pid = std::process::id();
    /// let open = |name| File::open(format!("/proc/{pid}/{name}"));
    /// let files = OpenFiles {
    ///     mem: open("mem")?,
    ///     pagemap: open("pagemap")?,
    ///     maps: open("maps")?,
    ///     smaps: open("smaps")?,
    /// };
    /// let process = Process::with_files(pid as i32, files).expect("this process");
    /// assert!(process.text("smaps").expect("a list").contains("Rss:"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_files(pid: i32, files: OpenFiles) -> Result<Self> {
        let mut process = Self::named(pid)?;
        process.mem = Some(files.mem);
        process.pagemap = Some(files.pagemap);
        process.lists = Some([files.maps, files.smaps]);
        process.read_maps()?;
        Ok(process)
    }

    /// A process with this number and with memory, before its files are opened.
    fn named(pid: i32) -> Result<Self> {
        let status = match fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoProcess(pid));
            }
            Err(source) => return Err(Error::Forbidden { pid, source }),
        };
        // A number of a thread leads to a folder too, but names no process.
        if pid <= 0 || proc_text::status(&status, "Tgid").and_then(|t| t.parse().ok()) != Some(pid)
        {
            return Err(Error::NoProcess(pid));
        }
        if proc_text::status(&status, "State").is_some_and(|s| s.starts_with(['Z', 'X'])) {
            return Err(Error::NoMemory(pid, "a process that has ended"));
        }
        if proc_text::status(&status, "VmSize").is_none() {
            return Err(Error::NoMemory(pid, "a kernel thread"));
        }
        let name = proc_text::status(&status, "Name").unwrap_or("?");
        Ok(Self {
            pid,
            name: crate::root::printable(name.as_bytes()),
            maps: Vec::new(),
            mem: None,
            pagemap: None,
            lists: None,
        })
    }

    /// Reads the list of mappings again.
    ///
    /// # Errors
    ///
    /// If the process ended, or the system forbids it.
    pub fn read_maps(&mut self) -> Result<()> {
        let text = self.text("maps")?;
        self.maps = proc_text::maps(&text);
        self.maps
            .retain(|map| map.name != "[vsyscall]" && map.name != "[vvar]");
        if self.maps.is_empty() {
            return Err(Error::Ended(self.pid));
        }
        Ok(())
    }

    /// Makes sure that memory can be read, in one of the two ways.
    fn check_access(&mut self) -> Result<()> {
        let Some(at) = self.maps.iter().find(|m| m.writable).map(|m| m.range.start) else {
            return Ok(());
        };
        let Err(errno) = self.read_remote(at, &mut [0; 8]) else {
            return Ok(());
        };
        match File::open(format!("/proc/{}/mem", self.pid)) {
            Ok(file) => self.mem = Some(file),
            Err(_) if errno == Errno::ESRCH => return Err(Error::Ended(self.pid)),
            Err(_) => {
                return Err(Error::Forbidden {
                    pid: self.pid,
                    source: errno.into(),
                });
            }
        }
        Ok(())
    }

    fn read_remote(&self, at: u64, to: &mut [u8]) -> std::result::Result<(), Errno> {
        let remote = [RemoteIoVec {
            base: at as usize,
            len: to.len(),
        }];
        let wanted = to.len();
        let read = process_vm_readv(Pid::from_raw(self.pid), &mut [IoSliceMut::new(to)], &remote)?;
        if read == wanted {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    }

    /// The process's number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The program's name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text of a file of `/proc/PID`.
    ///
    /// # Errors
    ///
    /// If the process ended, or the system forbids it.
    pub fn text(&self, file: &str) -> Result<String> {
        let pid = self.pid;
        let bytes = match (&self.lists, file) {
            (Some([maps, _]), "maps") => whole(maps),
            (Some([_, smaps]), "smaps") => whole(smaps),
            _ => fs::read(format!("/proc/{pid}/{file}")),
        };
        match bytes {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Ended(pid)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Error::Ended(pid)),
            Err(source) => Err(Error::Forbidden { pid, source }),
        }
    }

    /// Which pages from an address on are in memory; `None` if the system does not say.
    pub fn resident(&self, at: u64, pages: usize) -> Option<Vec<bool>> {
        let entries = self.pagemap(at / PAGE, pages)?;
        Some(entries.iter().map(|entry| entry & PRESENT != 0).collect())
    }

    /// Entries of `pagemap` from a page on.
    fn pagemap(&self, page: u64, pages: usize) -> Option<Vec<u64>> {
        let mut file = self.pagemap.as_ref()?;
        let mut bytes = Vec::with_capacity(pages * 8);
        file.seek(SeekFrom::Start(page * 8)).ok()?;
        file.take(pages as u64 * 8).read_to_end(&mut bytes).ok()?;
        bytes.resize(pages * 8, 0);
        let entries = bytes.chunks_exact(8);
        Some(
            entries
                .map(|e| u64::from_le_bytes(e.try_into().unwrap_or_default()))
                .collect(),
        )
    }
}

/// All bytes of an open file.
fn whole(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Memory for Process {
    fn read(&self, at: u64, to: &mut [u8]) -> std::result::Result<(), Fault> {
        match &self.mem {
            Some(mem) => mem.read_exact_at(to, at).map_err(|_| Fault),
            None => self.read_remote(at, to).map_err(|_| Fault),
        }
    }

    fn maps(&self) -> &[Map] {
        &self.maps
    }

    fn read_each(&self, at: &[u64], bytes: usize, to: &mut [u8]) -> Vec<bool> {
        let mut done = Vec::with_capacity(at.len());
        let parts = at
            .chunks(PARTS_MAX)
            .zip(to.chunks_mut(bytes.max(1) * PARTS_MAX));
        for (at, to) in parts {
            let remote: Vec<_> = at
                .iter()
                .map(|&at| RemoteIoVec {
                    base: at as usize,
                    len: bytes,
                })
                .collect();
            let all = bytes * at.len();
            let pid = Pid::from_raw(self.pid);
            let whole = self.mem.is_none()
                && to.len() >= all
                && process_vm_readv(pid, &mut [IoSliceMut::new(&mut to[..all])], &remote)
                    == Ok(all);
            if whole {
                done.extend(at.iter().map(|_| true));
            } else {
                // One of them failed: the kernel stops there.
                let each = at.iter().zip(to.chunks_mut(bytes.max(1)));
                done.extend(each.map(|(&at, part)| self.read(at, part).is_ok()));
            }
        }
        done
    }

    /// Threads that are runnable or wait for a page. A process that reads itself counts none: its
    /// caller knows what its threads do.
    fn running(&self) -> u64 {
        if self.pid == std::process::id() as i32 {
            return 0;
        }
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return 0;
        };
        let runs = |thread: &fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().unwrap_or("");
            state.starts_with(['R', 'D'])
        };
        threads.flatten().take(THREADS_MAX).filter(runs).count() as u64
    }

    fn touched(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.stretch(range, Files::Whole)
    }

    fn present(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.stretch(range, Files::Touched)
    }
}

impl Process {
    /// The first stretch of pages in `range` that were touched.
    fn stretch(&self, range: Range<u64>, files: Files) -> Option<Range<u64>> {
        let mut next = range.start;
        while let Some(part) = memory::mapped(&self.maps, next..range.end) {
            let map = memory::map_of(&self.maps, part.start)?;
            if files == Files::Whole && !map.name.is_empty() && !map.name.starts_with('[') {
                // Pages of a file may be read before they are touched.
                return Some(part);
            }
            let first = part.start / PAGE;
            let pages = (part.end.div_ceil(PAGE) - first).min(PAGEMAP_BATCH);
            let Some(entries) = self.pagemap(first, pages as usize) else {
                return Some(part);
            };
            let is_touched = |entry: &u64| entry & (PRESENT | SWAPPED | FILE) != 0;
            let Some(begin) = entries.iter().position(is_touched) else {
                next = (first + pages) * PAGE;
                continue;
            };
            let rest = &entries[begin..];
            let length = rest
                .iter()
                .position(|e| !is_touched(e))
                .unwrap_or(rest.len());
            let start = ((first + begin as u64) * PAGE).max(part.start);
            let end = ((first + (begin + length) as u64) * PAGE).min(part.end);
            return Some(start..end);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_itself() {
        let process = Process::open(std::process::id() as i32).unwrap();
        let value = Box::new(0x1122_3344_5566_7788_u64);
        let at = &raw const *value as u64;
        let mut to = [0; 8];
        process.read(at, &mut to).unwrap();
        assert_eq!(u64::from_ne_bytes(to), *value);
        assert_eq!(process.read(8, &mut to), Err(Fault));
        let mut both = [0; 16];
        let done = process.read_each(&[at, 8], 8, &mut both);
        assert_eq!(
            (done, &both[..8]),
            (vec![true, false], &value.to_ne_bytes()[..])
        );
        assert_eq!(process.resident(at, 1), Some(vec![true]));
        assert_eq!(process.touched(at..at + 8), Some(at..at + 8));
    }

    #[test]
    fn refusals_name_the_process() {
        // The largest number of a process is 2^22.
        let text = Process::open(1 << 23).unwrap_err().to_string();
        assert_eq!(text, "no process 8388608");
        assert!(matches!(Process::open(0), Err(Error::NoProcess(0))));
        assert!(matches!(Process::open(-1), Err(Error::NoProcess(-1))));
        let kernel = fs::read_to_string("/proc/2/comm").unwrap_or_default();
        if kernel.trim() == "kthreadd" {
            let text = Process::open(2).unwrap_err().to_string();
            assert_eq!(text, "process 2 has no memory: it is a kernel thread");
        }
    }
}
