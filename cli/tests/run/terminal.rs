//! At a terminal: Ctrl-C, an interactive command, and a shell's job control.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use lockkeeper_testkit::cases;
use rustix::fs::OFlags;
use rustix::process::{Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::loss::{FORKING, force};
use crate::rig::{Case, Rig, Running, TIMEOUT, code, is_alive};

pub(crate) const CASES: &[Case] = cases![
    ctrl_c_reaches_the_command,
    ctrl_c_ends_the_wait,
    ctrl_c_ends_the_calling_script,
    interactive_shell_as_the_command,
    stop_and_continue_from_a_shell,
    stop_and_continue_during_hold_at_least,
    session_leader_is_not_stopped,
    command_that_cannot_get_the_terminal_is_reported,
    unlock_asks_at_the_terminal,
    who_watch_redraws_the_terminal,
    command_substitution_reads_the_terminal,
    reader_of_a_pipe_keeps_the_terminal,
    script_keeps_the_terminal_of_a_background_run,
];

/// A program with a terminal of its own, and its output there.
struct Screen {
    keys: File,
    shown: Receiver<Vec<u8>>,
    text: String,
    program: Running,
}

impl Screen {
    fn start(rig: &Rig, command: &[&str]) -> Self {
        let mut start = rig.leader();
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        // By default Ctrl-C discards output that was not read yet. On a busy machine that can be the
        // program's reaction to Ctrl-C.
        let mut settings = tcgetattr(&keys).unwrap();
        settings.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&keys, OptionalActions::Now, &settings).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
        let terminal = || {
            // If these tests lead a session, it must not become their terminal.
            let mut options = File::options();
            let options = options.custom_flags(OFlags::NOCTTY.bits().cast_signed());
            Stdio::from(options.read(true).write(true).open(&path).unwrap())
        };
        // The program gets the terminal as its controlling terminal.
        start
            .arg("--ctty")
            .args(command)
            .env("PS1", "prompt> ")
            .env("TERM", "dumb")
            .env_remove("ENV")
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal());
        let program = Running(Some(start.spawn().unwrap()));
        let keys = File::from(keys);
        let mut reader = keys.try_clone().unwrap();
        let (sender, shown) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that no process has the terminal open any more.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keys,
            shown,
            text: String::new(),
            program,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown, and discards the output up to there.
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return;
            }
            let more = self.shown.recv_timeout(TIMEOUT);
            let more = more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }
}

const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

fn ctrl_c_reaches_the_command(rig: &Rig) {
    let mut screen = Screen::start(rig, &[BINARY, "run", "a", "--", "cat"]);
    screen.press("hello\n");
    // Once as the terminal's echo, once from cat.
    screen.wait_for("hello");
    screen.wait_for("hello");
    screen.press("\x03");
    assert_eq!(screen.program.code(), 130);
    // A command that handles INT decides for itself.
    let script = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.2; done";
    let mut screen = Screen::start(rig, &[BINARY, "run", "a", "--", "sh", "-c", script]);
    screen.wait_for("ready");
    screen.press("\x03");
    screen.wait_for("caught");
    assert_eq!(screen.program.code(), 3);
    // A process that it leaves behind goes on after INT, as all do that a script starts with `&`. A further INT kills
    // it.
    for (handler, status) in [("", 130), ("trap 'exit 131' INT; ", 131)] {
        let script = handler.to_owned() + &FORKING.replace("TERM", "INT");
        let mut screen = Screen::start(rig, &[BINARY, "run", "a", "--", "sh", "-c", &script]);
        rig.until_file("ready");
        screen.press("\x03");
        rig.until_reaped(rig.pid("first"));
        rig.until("another Ctrl-C ends it", || {
            // The time between two signals, as in `end_by_second_signal`.
            std::thread::sleep(std::time::Duration::from_millis(50));
            // It fails after the end.
            let _ = screen.keys.write_all(b"\x03");
            !screen.program.is_running()
        });
        // The last one may come after the end of the group, and ends the release then.
        assert!([status, 130].contains(&screen.program.code()));
        assert!(!is_alive(rig.pid("second")));
        rig.remove(&["first", "second", "ready"]);
    }
}

fn ctrl_c_ends_the_wait(rig: &Rig) {
    let holder = rig.hold("a");
    let mut screen = Screen::start(rig, &[BINARY, "run", "a", "--", "touch", "started"]);
    rig.until_waited_for("a", 1);
    screen.press("\x03");
    assert_eq!(screen.program.code(), 130);
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    assert!(!rig.exists("started"));
}

fn ctrl_c_ends_the_calling_script(rig: &Rig) {
    // With the terminal, and without, in a pipe.
    for script in [
        "\"$0\" run a -- sh -c 'echo ready; exec cat'; echo goes on; exit 5",
        "echo | \"$0\" run a -- sh -c 'echo ready; exec sleep 60'; echo goes on; exit 5",
    ] {
        let mut screen = Screen::start(rig, &["bash", "-c", script, BINARY]);
        screen.wait_for("ready");
        screen.press("\x03");
        let ended = screen.program.ended();
        assert_eq!(ended.signal(), Some(2), "{script}: {ended}");
    }
    // After another signal, which the command has handled, and later than one that ends `run` itself.
    let script = "\"$0\" run a -- sh -c 'trap \"sleep 0.6; echo outlived\" TERM; echo $PPID > pid; echo ready
while :; do sleep 0.2; done'; echo goes on; exit 5";
    let mut screen = Screen::start(rig, &["bash", "-c", script, BINARY]);
    screen.wait_for("ready");
    kill_process(rig.pid("pid"), Signal::TERM).unwrap();
    screen.wait_for("outlived");
    screen.press("\x03");
    let ended = screen.program.ended();
    assert_eq!(ended.signal(), Some(2), "{ended}");
    // A command that goes on without its lock.
    let script = "\"$0\" run --on-lost warn --ttl 3s --kill-after 500ms a -- \
sh -c 'echo ready; exec cat'; echo goes on; exit 5";
    let mut screen = Screen::start(rig, &["bash", "-c", script, BINARY]);
    screen.wait_for("ready");
    force(rig);
    screen.wait_for("goes on without it");
    screen.press("\x03");
    let ended = screen.program.ended();
    assert_eq!(ended.signal(), Some(2), "{ended}");
    // The same while it waits.
    let holder = rig.hold("a");
    let script = "\"$0\" run a -- touch started; echo goes on; exit 5";
    let mut screen = Screen::start(rig, &["bash", "-c", script, BINARY]);
    rig.until_waited_for("a", 1);
    screen.press("\x03");
    let ended = screen.program.ended();
    assert_eq!(ended.signal(), Some(2), "{ended}");
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    assert!(!rig.exists("started"));
}

fn interactive_shell_as_the_command(rig: &Rig) {
    // A shell with job control gives the terminal to its own jobs, so it must have it first.
    let mut screen = Screen::start(rig, &[BINARY, "run", "a", "--", "sh", "-i"]);
    screen.wait_for("prompt> ");
    screen.press("echo $((6 * 7)) $LOCKKEEPER_NAME\n");
    screen.wait_for("42 a");
    screen.wait_for("prompt> ");
    screen.press("cat\n");
    screen.press("typed\n");
    screen.wait_for("typed");
    screen.wait_for("typed");
    // Ends the cat, and neither the shell nor run.
    screen.press("\x03");
    screen.wait_for("prompt> ");
    screen.press("exit 7\n");
    assert_eq!(screen.program.code(), 7);
}

fn stop_and_continue_from_a_shell(rig: &Rig) {
    let mut screen = Screen::start(rig, &["sh", "-i"]);
    screen.wait_for("prompt> ");
    screen.press(&format!("{BINARY} run a -- cat\n"));
    screen.wait_for("cat");
    screen.press("first\n");
    screen.wait_for("first");
    screen.wait_for("first");
    screen.press("\x1a");
    screen.wait_for("Stopped");
    screen.wait_for("prompt> ");
    // The shell has the terminal, and the lock is still held.
    screen.press("echo shell $((1 + 1))\n");
    screen.wait_for("shell 2");
    assert!(!rig.who("a").is_null());
    screen.press("fg\n");
    screen.wait_for("cat");
    screen.press("second\n");
    screen.wait_for("second");
    screen.wait_for("second");
    screen.press("\x04");
    screen.wait_for("prompt> ");
    // After it the shell has its terminal back.
    screen.press("echo status $?\n");
    screen.wait_for("status 0");
    screen.press("exit 0\n");
    assert_eq!(screen.program.code(), 0);
}

fn stop_and_continue_during_hold_at_least(rig: &Rig) {
    let mut screen = Screen::start(rig, &["sh", "-i"]);
    screen.wait_for("prompt> ");
    screen.press(&format!("{BINARY} run -v --hold-at-least 1h a -- true\n"));
    screen.wait_for("keeping");
    screen.press("\x1a");
    screen.wait_for("Stopped");
    screen.wait_for("prompt> ");
    // A key could be quicker than the shell in giving the terminal away.
    screen.press("kill %1; fg\n");
    screen.wait_for("released");
    screen.press("echo status $?\n");
    screen.wait_for("status 0");
    screen.press("exit 0\n");
    assert_eq!(screen.program.code(), 0);
}

fn session_leader_is_not_stopped(rig: &Rig) {
    // The shell is of the same group and would stop, too, and no process would continue it.
    let script = "\"$0\" run a -- sh -c 'echo ready; read line; echo got $line'; exit $?";
    let mut screen = Screen::start(rig, &["sh", "-c", script, BINARY]);
    screen.wait_for("ready");
    screen.press("\x1a");
    screen.press("typed\n");
    screen.wait_for("got typed");
    assert_eq!(screen.program.code(), 0);
}

fn reader_of_a_pipe_keeps_the_terminal(rig: &Rig) {
    let mut screen = Screen::start(rig, &["sh", "-i"]);
    screen.wait_for("prompt> ");
    // The reader reads from the terminal, so the terminal must not be lent to the command.
    let reader = "sh -c 'read line; echo got $line; read answer < /dev/tty; echo answer $answer'";
    screen.press(&format!("{BINARY} run a -- echo piped | {reader}\n"));
    screen.wait_for("got piped");
    screen.press("yes\n");
    screen.wait_for("answer yes");
    screen.wait_for("prompt> ");
    screen.press("exit 0\n");
    assert_eq!(screen.program.code(), 0);
}

fn script_keeps_the_terminal_of_a_background_run(rig: &Rig) {
    let script = "\"$0\" run a -- sh -c 'touch ready; until [ -e done ]; do sleep 0.05; done; exit 3' &
until [ -e ready ]; do sleep 0.05; done; echo ready; read line; echo got $line; touch done; wait $!";
    let mut screen = Screen::start(rig, &["sh", "-c", script, BINARY]);
    screen.wait_for("ready");
    screen.press("typed\n");
    screen.wait_for("got typed");
    assert_eq!(screen.program.code(), 3);
}

fn command_that_cannot_get_the_terminal_is_reported(rig: &Rig) {
    // If the job's group is of another PID namespace, the terminal could not be given back to it.
    let mut start = rig.namespace(&[]);
    start.extend([BINARY, "run", "a", "--", "cat"]);
    let mut screen = Screen::start(rig, &start);
    screen.wait_for("it is stopped until");
}

fn who_watch_redraws_the_terminal(rig: &Rig) {
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let watch = ["who", "--watch", "--interval", "0.1"];
    let command = [&["env", "TERM=xterm", BINARY], &watch[..]].concat();
    let mut screen = Screen::start(rig, &command);
    screen.wait_for("\x1b[HEvery 100ms");
    screen.wait_for("No lock is held.");
    let holder = rig.hold("a");
    screen.wait_for("\na ");
    // The same list again, since the time goes on.
    screen.wait_for("\x1b[HEvery 100ms");
    screen.wait_for("\na ");
    screen.press("\x03");
    assert_eq!(screen.program.code(), 130);
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
}

fn command_substitution_reads_the_terminal(rig: &Rig) {
    // An interactive shell ignores these signals within `$(…)`.
    let script = "trap '' TSTP TTIN TTOU; read=$(\"$0\" run a -- head -n 1); echo \"got $read\"";
    let mut screen = Screen::start(rig, &["sh", "-c", script, BINARY]);
    screen.press("typed\n");
    screen.wait_for("got typed");
    assert_eq!(screen.program.code(), 0);
}

fn unlock_asks_at_the_terminal(rig: &Rig) {
    let holder = rig.hold("a");
    let unlock_a = [BINARY, "unlock", "--force", "a"];
    let mut screen = Screen::start(rig, &unlock_a);
    screen.wait_for("is held by");
    screen.wait_for("[y/N] ");
    screen.press("n\n");
    screen.wait_for("nothing was done");
    assert_eq!(screen.program.code(), 1);
    assert!(!rig.who("a").is_null());
    let mut screen = Screen::start(rig, &unlock_a);
    screen.wait_for("[y/N] ");
    screen.press("y\n");
    screen.wait_for("Freed");
    assert_eq!(screen.program.code(), 0);
    assert!(rig.who("a").is_null());
    rig.write("release", "");
    assert_eq!(holder.code(), 79);
}
