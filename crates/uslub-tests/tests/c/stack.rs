//! Little stack is enough: signal stacks and coroutines.

use uslub_tests::tools::shared;
use uslub_tests::{Run, Way, in_every_way, program};

fn small_stack(way: Way) {
    let _shared = shared();
    let Some(small) = program("small_stack") else {
        return;
    };
    Run::of(small).on(way).wrote("small_stack: ok");
}

in_every_way! {
    fn no_call_takes_more_than_1_kib_of_stack(way) {
        small_stack(way);
    }
}

#[test]
fn nor_does_one_with_slots_by_cpu_number() {
    small_stack(Way::BY_NUMBER);
}
