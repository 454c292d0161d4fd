//! What the calls answer at the edges of their arguments, as the GNU library's do.

use uslub_tests::tools::{alone, shared};
use uslub_tests::{Run, in_every_way, program};

in_every_way! {
    fn each_call_answers_as_the_c_librarys(way) {
        let _shared = shared();
        let Some(conventions) = program("conventions") else { return };
        let expected = Run::of(&conventions).plainly().wrote("conventions: ok");
        let found = Run::of(&conventions).on(way).wrote("conventions: ok");
        let differences: Vec<_> = (expected.stdout.lines().zip(found.stdout.lines()))
            .filter(|(expected, found)| expected != found)
            .map(|(expected, found)| format!("C library: {expected}\n    uslub: {found}"))
            .collect();
        assert_eq!(differences, Vec::<String>::new());
        assert_eq!(expected.stdout.lines().count(), found.stdout.lines().count());
    }

    fn figures_go_to_the_stream_and_trims_cost_what_they_give(way) {
        let _alone = alone();
        let Some(streams) = program("streams") else { return };
        let folder = tempfile::tempdir().expect("a folder");
        Run::of(streams)
            .args([folder.path().join("stderr")])
            .on(way)
            .wrote("streams: ok");
    }
}
