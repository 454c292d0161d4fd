//! What malloc and operator new promise.

use uslub_tests::tools::{alone, shared};
use uslub_tests::{Run, in_every_way, program};

in_every_way! {
    fn every_size_is_served_and_impossible_ones_are_refused(way) {
        let _alone = alone();
        let Some(api) = program("api") else { return };
        Run::of(api).on(way).wrote("api: ok");
    }

    fn every_alignment_is_kept(way) {
        let _shared = shared();
        let Some(align) = program("align") else { return };
        Run::of(align).on(way).wrote("align: ok");
    }

    fn the_allocator_tells_the_truth_about_itself(way) {
        let _shared = shared();
        let Some(info) = program("info") else { return };
        Run::of(info).on(way).wrote("info: ok");
    }

    fn cxx_lives_on_it(way) {
        let _shared = shared();
        let Some(cxx) = program("cxx") else { return };
        Run::of(cxx).on(way).wrote("cxx: ok");
    }

    fn a_signal_handler_may_allocate_on_the_fast_path(way) {
        let _alone = alone();
        let Some(signals) = program("signals") else { return };
        Run::of(signals).on(way).succeeded();
    }
}
