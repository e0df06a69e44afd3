//! `lockkeeper run` on systems without process groups and signals.

use std::process::ExitCode;

use crate::args;
use crate::failure::{Failure, SYSTEM};
use crate::output;

pub(crate) fn helper() -> Option<ExitCode> {
    None
}

pub(crate) fn main(_args: &args::Run) -> ExitCode {
    let text = "`run` needs process groups and signals, which this system does not have";
    output::exit_code(Err(Failure::new(SYSTEM, text)))
}
