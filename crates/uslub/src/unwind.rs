//! What a panic leaves behind: caches stay usable, and an object is as safe as its value.
//!
//! A panic of a user's code (a constructor, a drop) leaves a cache as it was before the call, or
//! with one object less. `tests/panics.rs` holds that. So `catch_unwind` may see caches.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::buckets::Buckets;
use crate::cache::Cache;
use crate::lazy::LazyCache;
use crate::object::Object;
use crate::owned::OwnedObject;
use crate::raw::RawCache;

impl UnwindSafe for RawCache {}
impl RefUnwindSafe for RawCache {}
impl<T> UnwindSafe for Cache<T> {}
impl<T> RefUnwindSafe for Cache<T> {}
impl<T> UnwindSafe for LazyCache<T> {}
impl<T> RefUnwindSafe for LazyCache<T> {}
impl UnwindSafe for Buckets {}
impl RefUnwindSafe for Buckets {}
// As a `Box`.
impl<T: UnwindSafe> UnwindSafe for Object<'_, T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Object<'_, T> {}
impl<T: UnwindSafe> UnwindSafe for OwnedObject<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for OwnedObject<T> {}
