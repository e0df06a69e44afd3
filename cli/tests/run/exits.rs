//! The exit statuses, row by row, and what the command inherits.

use std::io::Write;
use std::process::Stdio;

use lockkeeper_testkit::cases;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;

use crate::rig::{Case, Rig, Running, code, contains, exits, fails, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    status_of_the_command_is_passed_on,
    busy_is_75_or_conflict_exit_code,
    usage_is_64,
    short_times_run_and_a_short_lease_is_warned_of,
    full_disk_for_output_is_71,
    unreachable_store_is_69,
    command_not_found_is_127_and_not_executable_is_126,
    environment_has_the_lock_and_no_url,
    #[cfg(target_os = "linux")]
    command_cannot_read_the_environment_of_run,
    standard_streams_are_inherited,
    full_standard_error_delays_no_signal,
    hold_at_least_keeps_the_lock_after_the_command,
];

fn full_standard_error_delays_no_signal(rig: &Rig) {
    let (_reader, mut writer) = std::io::pipe().unwrap();
    let usual = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, usual | OFlags::NONBLOCK).unwrap();
    while writer.write(b"full ").is_ok() {}
    fcntl_setfl(&writer, usual).unwrap();
    let mut command = rig.run_command(&["-v", "a"], "touch ready; while :; do sleep 0.2; done");
    let mut run = Running(Some(command.stderr(writer).spawn().unwrap()));
    rig.until_file("ready");
    run.signal(Signal::TERM);
    assert_eq!(run.ended().code(), Some(143));
    assert!(rig.who("a").is_null());
}

fn status_of_the_command_is_passed_on(rig: &Rig) {
    for status in [0, 1, 7, 75, 255] {
        let output = rig.run(&["a"], &format!("exit {status}"));
        exits(&output, status);
        assert_eq!(stderr_of(&output), "");
    }
    let line = ["run", "a", "-c", "false || exit 7"];
    assert_eq!(code(&rig.lockkeeper(&line).output().unwrap()), 7);
    for signal in [1, 2, 9, 15] {
        let output = rig.run(&["a"], &format!("kill -{signal} $$"));
        exits(&output, 128 + signal);
    }
}

fn busy_is_75_or_conflict_exit_code(rig: &Rig) {
    let holder = rig.hold("a");
    for (args, status) in [
        (&["--no-wait", "a"][..], 75),
        (&["-n", "a"], 75),
        (&["--wait", "50ms", "a"], 75),
        (&["-w", "0.05", "a"], 75),
        (&["--wait", "0s", "-E", "0", "a"], 0),
        (&["-n", "--conflict-exit-code", "9", "a"], 9),
    ] {
        let output = rig.run(args, "touch started");
        exits(&output, status);
        let line = stderr_of(&output);
        assert_eq!(line.lines().count(), usize::from(status != 0), "{line}");
        if let Some(pid) = rig.who("a")["pid"].as_u64().filter(|_| status != 0) {
            assert_eq!(
                pid,
                u64::try_from(holder.pid().as_raw_nonzero().get()).unwrap()
            );
            assert!(line.contains(&format!("pid {pid}")), "{line}");
        }
    }
    let output = rig.run(&["-n", "-q", "a"], "touch started");
    assert_eq!((code(&output), stderr_of(&output).as_str()), (75, ""));
    let output = rig.run(&["-v", "-n", "-E", "0", "a"], "touch started");
    let lines = stderr_of(&output);
    contains(&lines, &["held by another process", "--wait for it"]);
    assert!(!rig.exists("started"));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    let output = rig.run(&["-v", "--wait", "forever", "a"], "touch started");
    assert_eq!(code(&output), 0);
    for part in ["got \"a\"", "ended with 0", "released \"a\""] {
        contains(&stderr_of(&output), &[part]);
    }
    assert!(rig.exists("started"));
}

fn usage_is_64(rig: &Rig) {
    let long = "x".repeat(513);
    let long = format!("run {long} -- true");
    for (line, part) in [
        ("run a", "COMMAND"),
        ("run -- true", "NAME"),
        ("run --wait soon a -- true", "10s"),
        ("run -w inf a -- true", "too big"),
        ("run -w 99999999999 a -- true", "a hundred years"),
        (
            "run --ttl 18446744073709551615s1000000000ns a -- true",
            "10s",
        ),
        ("run a -c true -- true", "--command"),
        ("run -n --wait 1s a -- true", "--wait"),
        ("run --ttl 1s --lease 1s a -- true", "--lease"),
        ("run -E 256 a -- true", "256"),
        ("run --label 자리 a -- true", "ASCII"),
        ("run --slots 0 a -- true", "1..=65535"),
        ("run --slots 2 --shared a -- true", "--shared"),
        ("run --slots 2 --also b a -- true", "--also"),
        ("run a --also  -- true", "must not be empty"),
        ("run --bogus a -- true", "--bogus"),
        ("run --tll 1s a -- true", "'--ttl'"),
        ("run a true", "lockkeeper run NAME -- true"),
        ("run a", "lockkeeper run --help"),
        ("run  -- true", "must not be empty"),
        (&long, "513 bytes"),
        // Times that do not fit: the error shows the arithmetic.
        ("run --ttl 10s --kill-after 5s a -- true", "5s are 6s"),
        ("run --lease 5s --kill-after 5s a -- true", "--lease 6s"),
        ("run --kill-after 20s a -- true", "20s are 21s"),
        (
            "run --lease 10s --hold-at-least 1m a -- true",
            "--hold-at-least 1m",
        ),
        ("run --ttl 1ms --kill-after 0s a -- true", "or more"),
        ("who a b", "b"),
        ("who --all-namespaces a", "--all-namespaces"),
        ("who --interval 1s", "--watch"),
        ("who --watch --interval 0", "100ms"),
        ("unlock a", "--force"),
        ("unlock --force", "NAME"),
        ("unlock --force --prefix a a", "--prefix"),
        ("who --prefix a a", "--prefix"),
        ("unlock --force ", "empty"),
        ("doctor --bogus", "--bogus"),
        #[cfg(feature = "compare")]
        ("compare --bogus", "--bogus"),
        #[cfg(feature = "compare")]
        ("compare --threads 1", "threads"),
        ("completions bogus", "bogus"),
        ("manual --bogus", "--bogus"),
        ("help bogus", "bogus"),
        ("bogus", "bogus"),
    ] {
        let args: Vec<_> = line.split(' ').collect();
        let output = rig.lockkeeper(&args).output().unwrap();
        let text = fails(&output, 64);
        assert!(text.contains(part), "{line}: {text}");
        assert!(text.starts_with("lockkeeper: "), "{line}: {text}");
    }
}

fn short_times_run_and_a_short_lease_is_warned_of(rig: &Rig) {
    // Below 12s, the default of --kill-after is not the longest one.
    for option in ["--ttl", "--lease"] {
        let output = rig.run(&[option, "11s", "a"], "exit 3");
        exits(&output, 3);
        assert_eq!(stderr_of(&output), "");
    }
    let output = rig.run(&["--lease", "40s", "--kill-after", "30s", "a"], "exit 3");
    assert_eq!(code(&output), 3);
    let text = stderr_of(&output);
    contains(&text, &["leaves the command 9s"]);
}

fn full_disk_for_output_is_71(rig: &Rig) {
    // The database file exists from here on.
    assert_eq!(code(&rig.run(&["a"], "true")), 0);
    for args in [
        &["who"][..],
        &["--help"],
        &["--version"],
        &["run", "--help"],
        &["manual"],
        &["completions", "bash"],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = rig.lockkeeper(args).stdout(full).output().unwrap();
        fails(&output, 71);
    }
}

fn unreachable_store_is_69(rig: &Rig) {
    let output = rig.run(&["--url", "redis://127.0.0.1:1", "a"], "touch started");
    fails(&output, 69);
    let output = rig.run(
        &["-q", "--url", "redis://127.0.0.1:1", "a"],
        "touch started",
    );
    assert_eq!((code(&output), stderr_of(&output).as_str()), (69, ""));
    assert!(!rig.exists("started"));
}

fn command_not_found_is_127_and_not_executable_is_126(rig: &Rig) {
    rig.write("text", "no program");
    for (command, status) in [("no-such-command", 127), ("./text", 126), ("/", 126)] {
        let output = rig
            .lockkeeper(&["run", "a", "--", command])
            .output()
            .unwrap();
        exits(&output, status);
        contains(&stderr_of(&output), &[command]);
        let quiet = ["run", "-q", "a", "--", command];
        let output = rig.lockkeeper(&quiet).output().unwrap();
        assert_eq!((code(&output), stderr_of(&output).as_str()), (status, ""));
    }
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 0, "it was released");
}

fn environment_has_the_lock_and_no_url(rig: &Rig) {
    let script = "env; echo before=$BEFORE";
    let mut command = rig.run_command(&["자리 42"], script);
    command
        .env("BEFORE", "kept")
        .env("LOCKKEEPER_NAMESPACE", "shop")
        .env("LOCKKEEPER_TTL", "30s");
    let output = command.output().unwrap();
    exits(&output, 0);
    let text = String::from_utf8(output.stdout).unwrap();
    let own: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("LOCKKEEPER_"))
        .collect();
    assert_eq!(own.len(), 3, "{own:?}");
    let value = |name: &str| {
        let line = own.iter().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {own:?}"))
            .to_owned()
    };
    assert_eq!(value("NAME="), "자리 42");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let left = value("DEADLINE_UNIX_MS=").parse::<u128>().unwrap() - now.unwrap().as_millis();
    assert!(left > 10_000 && left <= 29_000, "{left}");
    assert!(text.contains("before=kept") && !text.contains(rig.url()));
    let first: u64 = value("TOKEN=").parse().unwrap();
    let again = rig.run(&["자리 42"], "echo $LOCKKEEPER_TOKEN");
    let second: u64 = String::from_utf8(again.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(second > first && first > 0, "{first}, {second}");
}

/// The command cannot read the environment of `run`, which may have a password. Root could read it.
#[cfg(target_os = "linux")]
fn command_cannot_read_the_environment_of_run(rig: &Rig) {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let mut command = rig.run_command(&["a"], "cat /proc/$PPID/environ > read || touch refused");
    if rustix::process::geteuid().is_root() {
        // The program's own folder may be closed to other users. Another process copies it. If this process did,
        // children that other threads start meanwhile would inherit the file open for writing, and such a program
        // cannot be run.
        let copied = std::process::Command::new("cp")
            .args([
                env!("CARGO_BIN_EXE_lockkeeper").as_ref(),
                rig.path("lockkeeper").as_os_str(),
            ])
            .status();
        assert!(copied.unwrap().success());
        let mut other = std::process::Command::new(rig.path("lockkeeper"));
        rig.set_environment(&mut other);
        other.args(command.get_args()).uid(NOBODY).gid(NOBODY);
        command = other;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(rig.path("lockkeeper"), mode).unwrap();
        for folder in ["", "store"] {
            chown(rig.path(folder), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let output = command.output().unwrap();
    exits(&output, 0);
    assert!(rig.exists("refused") && rig.read("read").is_empty());
}

fn standard_streams_are_inherited(rig: &Rig) {
    let mut command = rig.run_command(&["a"], "cat; echo to the error >&2");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"\0in and out\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"\0in and out\n");
    assert_eq!(stderr_of(&output), "to the error\n");
    // A reader that ends early ends the command by PIPE.
    let output = std::process::Command::new("sh")
        .args(["-c", "\"$0\" run a -- yes | head -n 1"])
        .arg(env!("CARGO_BIN_EXE_lockkeeper"))
        .env("LOCKKEEPER_URL", rig.url())
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"y\n", "{}", stderr_of(&output));
    assert_eq!(stderr_of(&output), "");
}

fn hold_at_least_keeps_the_lock_after_the_command(rig: &Rig) {
    let mut holder = rig.start(
        &["--hold-at-least", "1h", "a"],
        "echo $$ > pid; touch ended; exit 79",
    );
    rig.until_file("ended");
    rig.until_gone(rig.pid("pid"));
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 75);
    assert!(holder.is_running());
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.code(), 79);
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 0);
    // A signal that came while the command ran also ends the time of --hold-at-least.
    let ended = rig.start(
        &["--hold-at-least", "1h", "a"],
        "trap 'exit 4' TERM; touch runs; while :; do sleep 0.2; done",
    );
    rig.until_file("runs");
    ended.signal(rustix::process::Signal::TERM);
    assert_eq!(ended.code(), 4);
}
