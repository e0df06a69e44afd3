//! A script, and the commands that run it in the server.

use redis::Value;

pub(crate) struct Script {
    code: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }

    /// Returns the command that runs the script if the server has it.
    pub(crate) fn by_sha(&self, keys: &[&str], args: &[&str]) -> Vec<u8> {
        packed("EVALSHA", &self.sha, keys, args)
    }

    /// Returns the command that runs the script, and loads it.
    pub(crate) fn by_code(&self, keys: &[&str], args: &[&str]) -> Vec<u8> {
        packed("EVAL", &self.code, keys, args)
    }
}

/// Returns whether the server does not have the script: it is new there, or was forgotten by SCRIPT FLUSH
/// or a restart.
pub(crate) fn is_no_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

fn packed(command: &str, script: &str, keys: &[&str], args: &[&str]) -> Vec<u8> {
    let mut command = redis::cmd(command);
    command.arg(script).arg(keys.len()).arg(keys).arg(args);
    command.get_packed_command()
}
