//! A section of a script under a lock, in the ways that the help and `docs/operating.md` show.

use std::io::Write;
use std::process::{Command, Stdio};

use lockkeeper_testkit::cases;

use crate::rig::{Case, Rig, Running, stderr_of};

pub(crate) const CASES: &[Case] = cases![sections_of_a_script_run_under_the_lock,];

const SCRIPT: &str = r#"
version="1.2 b"
export version
"$BINARY" run first -c '
  read -r line
  echo "$line: $version under $LOCKKEEPER_NAME"
'
"$BINARY" run second -- sh -eu -s -- "$version" <<'EOF'
echo "it's $1 under $LOCKKEEPER_NAME"
exit 3
EOF
echo "status $?"
cat > whole <<'EOF'
[ "${LOCKKEEPER_NAME-}" = whole ] || exec "$BINARY" run whole -- sh "$0" "$@"
echo "$# arguments under $LOCKKEEPER_NAME"
EOF
sh whole "$version" c
"#;

fn sections_of_a_script_run_under_the_lock(rig: &Rig) {
    let mut command = Command::new("sh");
    rig.set_environment(&mut command);
    command
        .args(["-c", SCRIPT])
        .env("BINARY", env!("CARGO_BIN_EXE_lockkeeper"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut script = command.spawn().unwrap();
    let mut stdin = script.stdin.take().unwrap();
    stdin.write_all(b"typed\n").unwrap();
    drop(stdin);
    let output = Running(Some(script)).output();
    assert_eq!(stderr_of(&output), "");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "typed: 1.2 b under first\n\
         it's 1.2 b under second\n\
         status 3\n\
         2 arguments under whole\n"
    );
}
