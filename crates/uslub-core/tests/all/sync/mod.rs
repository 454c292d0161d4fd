//! How threads meet.

mod lock;
