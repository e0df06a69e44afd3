//! The cases of etcd alone.

mod cluster;
mod late;
mod loss;
mod opening;
mod relay;
mod revisions;
mod store;

use std::process::ExitCode;

use lockkeeper_testkit::{EtcdKind, EtcdServer, suite};

use crate::faults::run;

type Case = suite::Case<EtcdKind>;

pub(crate) fn main() -> ExitCode {
    let cases = [late::CASES, loss::CASES, opening::CASES, revisions::CASES];
    run::<EtcdServer>(cases.into_iter().flatten().copied())
}
