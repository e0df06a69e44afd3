//! The claims of shared locks, of slots and of several names.

use crate::claims::{claim_of, followed, take, waits_for_claim};
use crate::loss::{FORKING, with};
use crate::modes::needs;
use crate::rig::{Case, Outcome, Rig, code, stderr_of};

pub(crate) const CASES: &[Case] = &[
    ("claim_of_a_reader_delays_only_writers", reader),
    (
        "writer_waits_for_the_end_of_an_earlier_reader",
        after_reader,
    ),
    ("command_waits_for_the_one_before_in_its_slot", after_slot),
    (
        "command_waits_for_the_one_before_under_several_names",
        after_several,
    ),
];

fn reader(rig: &mut Rig) -> Outcome {
    needs(rig, &["--shared"])?;
    let holder = rig.start(
        &["--shared", "a"],
        "touch held; until [ -e release ]; do sleep 0.05; done",
    );
    rig.until_file("held");
    let claim = claim_of(holder.pid());
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    let claim = take(&format!("{claim}0")).unwrap();
    let other = ["--ttl", "5m", "-v", "--shared", "a"];
    let other = rig.start(&other, "exit 3").output();
    assert_eq!(code(&other), 3, "{}", stderr_of(&other));
    let lines = stderr_of(&other);
    assert!(!lines.contains("an earlier command"), "{lines}");
    let writer = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    // This takes longer than the shortest time for which a claim is respected.
    let args = ["--lease", "3s", "--kill-after", "100ms", "b"];
    assert_eq!(code(&rig.run(&args, "exec sleep 30")), 79);
    assert!(!rig.exists("started"), "the claim was not respected");
    drop(claim);
    assert_eq!(writer.code(), 0);
    assert!(rig.exists("started"));
    Ok(())
}

fn after_reader(rig: &mut Rig) -> Outcome {
    needs(rig, &["--shared"])?;
    let run = rig.start(&with(&["--shared", "a"]), FORKING);
    rig.until_file("ready");
    followed(rig, run, &["a"]);
    Ok(())
}

fn after_slot(rig: &mut Rig) -> Outcome {
    needs(rig, &["--slots", "1"])?;
    let run = rig.start(&with(&["--slots", "1", "a"]), FORKING);
    rig.until_file("ready");
    followed(rig, run, &["--slots", "1", "a"]);
    Ok(())
}

fn after_several(rig: &mut Rig) -> Outcome {
    let run = rig.start(&with(&["b", "--also", "a"]), FORKING);
    rig.until_file("ready");
    followed(rig, run, &["a"]);
    for file in ["first", "second", "ready", "next"] {
        std::fs::remove_file(rig.path(file)).unwrap();
    }
    let run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    followed(rig, run, &["b", "--also", "a"]);
    Ok(())
}
