//! The system's pages, whatever their length; `.ci/kernels` runs this on kernels with longer ones.

use uslub_tests::tools::shared;
use uslub_tests::{Run, Way, in_every_way, program};

fn purge(way: Way) {
    let _shared = shared();
    let Some(purge) = program("purge") else {
        return;
    };
    Run::of(purge).on(way).wrote("purge: ok");
}

in_every_way! {
    fn memory_that_goes_back_takes_no_live_block_along(way) {
        purge(way);
    }
}

#[test]
fn memory_that_goes_back_takes_no_live_block_along_by_the_cpus_number() {
    purge(Way::BY_NUMBER);
}
