//! The example of the guide on storms: three agents wake each other. Without limits they do not stop; with the default limits they do.

use crate::{
    docs::{matches, scenario},
    on_both,
};

on_both! {
    without a server:

    fn agents_that_wake_each_other_end_with_limits_and_not_without(sealed: Sealed) {
        let blocks = scenario("storm");
        let [script, says] = &blocks[..] else { panic!("{blocks:#?}") };
        sealed.script("scene", script);
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        std::os::unix::fs::symlink(examples, sealed.path().join("examples")).expect("the examples");
        // In a directory of its own, as a reader would have it.
        let said = sealed.sh("export TMPDIR=$PWD; timeout 400 ./scene 2>&1");
        if said.code != 0 {
            let state = sealed.sh("cd tmp.* && tail -n 50 log; fence storm; fence runs --all; fence doctor");
            panic!("exit {}: {}\n{}\n{}", said.code, said.out, state.out, state.err);
        }
        assert!(matches(says, &said.out), "the guide says\n{says}\nit said\n{}", said.out);
    }
}
