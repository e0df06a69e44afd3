//! The claims of shared locks, of slots and of several names.

use lockkeeper_testkit::cases;

use crate::claims::followed;
use crate::loss::{FORKING, with};
use crate::rig::{Case, Rig};

pub(crate) const CASES: &[Case] =
    cases![command_waits_for_the_one_before_in_its_mode_and_under_its_names,];

fn command_waits_for_the_one_before_in_its_mode_and_under_its_names(rig: &Rig) {
    for (first, next) in [
        (&["--shared", "a"][..], &["a"][..]),
        (&["--slots", "1", "a"], &["--slots", "1", "a"]),
        (&["b", "--also", "a"], &["a"]),
        (&["a"], &["b", "--also", "a"]),
    ] {
        let run = rig.start(&with(first), FORKING);
        rig.until_file("ready");
        followed(rig, run, next);
        rig.remove(&["first", "second", "ready", "next"]);
    }
}
