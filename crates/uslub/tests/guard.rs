//! Guarded objects of a Rust program: of its global allocator, and of `kmalloc`.

use std::env;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::Duration;

use uslub::{Gfp, Uslub, kfree, kmalloc, krealloc, ksize};

#[global_allocator]
static GLOBAL: Uslub = Uslub;

const CHILD: &str = "USLUB_TEST_CHILD";

/// Runs a test again in a child with these options, where this gives `None`.
fn in_child(test: &str, options: &str) -> Option<Output> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let output = Command::new(env::current_exe().expect("our name"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("USLUB_OPTIONS", options)
        .output()
        .expect("a child");
    Some(output)
}

/// A guarded object of 40 bytes; others leak.
fn guarded() -> *mut u8 {
    for _ in 0..5000 {
        for _ in 0..500 {
            let object = kmalloc(40, Gfp::KERNEL).expect("memory").as_ptr();
            if ksize(object) == 40 {
                return object;
            }
        }
        sleep(Duration::from_millis(1));
    }
    panic!("no object was guarded");
}

#[test]
fn a_use_after_free_ends_the_program() {
    let name = "a_use_after_free_ends_the_program";
    let Some(output) = in_child(name, "guard=1000") else {
        let object = guarded();
        // SAFETY: the read is not safe, on purpose: it must not return.
        unsafe {
            kfree(object);
            black_box(object.read_volatile());
        }
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(
        said.contains("BUG: guard: use-after-free read in guard-"),
        "{said}"
    );
    assert!(said.contains("freed by thread "), "{said}");
}

#[test]
fn collections_on_guarded_objects_are_right() {
    let name = "collections_on_guarded_objects_are_right";
    let Some(output) = in_child(name, "guard=10000") else {
        let mut kept = Vec::new();
        for round in 0..200_usize {
            let mut text: Vec<String> = (0..200).map(|n| format!("{round} {n}")).collect();
            text.iter_mut().for_each(|text| text.push_str(" and more"));
            assert!(
                text.iter()
                    .enumerate()
                    .all(|(n, t)| *t == format!("{round} {n} and more"))
            );
            assert!(vec![0u8; round].iter().all(|&byte| byte == 0));
            kept.extend(text.into_iter().step_by(3));
        }
        let object = guarded();
        // SAFETY: live, and freed once.
        unsafe {
            object.write_bytes(3, 40);
            let moved = krealloc(object, 400, Gfp::KERNEL).expect("memory").as_ptr();
            assert!((0..40).all(|at| *moved.add(at) == 3));
            kfree(moved);
        }
        // SAFETY: reads two counters.
        let allocator = unsafe { uslub::raw_allocator() };
        let (guarded, hits) = allocator.expect("memory").debug.guard.counts();
        assert!(guarded > 1 && hits == 0, "{guarded} {hits}");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("BUG: guard"), "{said}");
}

/// The handler that [`chains`] has replaced.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// A handler that calls the one before it, as handlers of crash reporters do.
extern "C" fn chains(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let text = b"chained\n";
    // SAFETY: writes a text; the handler before is of this type, by its flags.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        // SeqCst: a test.
        let before = std::mem::transmute::<usize, Handler>(REPLACED.load(SeqCst));
        before(signal, info, context);
    }
}

/// Sets [`chains`], past the allocator, and guards another object.
fn set_a_chain() -> *mut u8 {
    guarded();
    // SAFETY: zeroes are a valid action; the handler lives as long as the process.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        new.sa_sigaction = chains as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &raw const new, &raw mut old);
        // SeqCst: a test.
        REPLACED.store(old.sa_sigaction, SeqCst);
    }
    guarded()
}

#[test]
fn a_later_handler_gets_other_faults_and_may_call_the_one_before() {
    let name = "a_later_handler_gets_other_faults_and_may_call_the_one_before";
    let Some(output) = in_child(name, "guard=1000") else {
        set_a_chain();
        // SAFETY: not safe, on purpose: page 0 is never mapped.
        unsafe { black_box(64 as *const u8).read_volatile() };
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{said}");
    assert_eq!(said.matches("chained").count(), 1, "{said}");
}

#[test]
fn a_later_handler_does_not_see_faults_of_guarded_objects() {
    let name = "a_later_handler_does_not_see_faults_of_guarded_objects";
    let Some(output) = in_child(name, "guard=1000") else {
        let object = set_a_chain();
        // SAFETY: not safe, on purpose.
        unsafe {
            kfree(object);
            object.write_volatile(1);
        }
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("use-after-free write"), "{said}");
    assert!(!said.contains("chained"), "{said}");
}
