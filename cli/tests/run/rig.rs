//! The fixture of the cases: a store, a throw-away folder, and programs that end with the case.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, with_timeouts};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use signal_hook::flag::register_conditional_default;
use tempfile::TempDir;

/// The longest wait of a case for an event that must come.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// The time-outs of a server. No case is about them.
const REPLY_LIMIT: Duration = TIMEOUT;
const REDIS: RedisKind = RedisKind::Redis7;

pub(crate) type Case = (&'static str, fn(&Rig));

/// The reason why a case cannot run.
struct Skip(&'static str);

/// Ends the case, which shows as ignored.
pub(crate) fn skip(why: &'static str) -> ! {
    resume_unwind(Box::new(Skip(why)))
}

/// A case that does something to its server.
pub(crate) type RedisCase = (&'static str, fn(&Rig, &RedisServer));

/// Runs every case on a SQLite file of its own, the others on a Redis of its own, and the trials of `servers`.
pub(crate) fn main(on_file: &[Case], on_redis: &[RedisCase], servers: Vec<Trial>) -> ExitCode {
    let mut args = Arguments::from_args();
    // Cases spend most of their time waiting.
    args.test_threads.get_or_insert(8);
    // A shell ignores some signals in what it starts in the background. A signal that is handled here
    // gets its default action in the programs that the cases start.
    for signal in [Signal::INT, Signal::QUIT, Signal::HUP] {
        let ends_as_ever = Arc::new(AtomicBool::new(true));
        register_conditional_default(signal.as_raw(), ends_as_ever).unwrap();
    }
    // The longest cases first, so that none of them runs alone at the end.
    let mut trials = servers;
    trials.extend(on_redis.iter().map(|&(name, case)| {
        Trial::ignorable_test(format!("{REDIS}::{name}"), move || {
            if let Some(why) = REDIS.ignored() {
                return Ok(Completion::ignored_with(why));
            }
            let server = RedisServer::start(REDIS, &RedisOptions::new()).unwrap();
            run(|| case(&Rig::on_server(&server.url()), &server))
        })
    }));
    trials.extend(
        on_file.iter().map(|&(name, case)| {
            Trial::ignorable_test(name, move || run(|| case(&Rig::on_file())))
        }),
    );
    libtest_mimic::run(&args, trials).exit_code()
}

fn run(case: impl FnOnce()) -> Result<Completion, Failed> {
    let Err(panic) = catch_unwind(AssertUnwindSafe(case)) else {
        return Ok(Completion::Completed);
    };
    match panic.downcast() {
        Ok(skip) => {
            let Skip(why) = *skip;
            Ok(Completion::ignored_with(why))
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// A store, and a folder for the files of the commands.
pub(crate) struct Rig {
    pub(crate) folder: TempDir,
    url: String,
}

impl Rig {
    fn on_file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        let file = folder.path().join("store/locks.db");
        let url = format!("sqlite:{}", file.display());
        Self { folder, url }
    }

    pub(crate) fn on_server(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = with_timeouts(url, REPLY_LIMIT);
        Self { folder, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn remove(&self, names: &[&str]) {
        for name in names {
            fs::remove_file(self.path(name)).unwrap();
        }
    }

    /// Returns the process id that a command wrote to a file.
    pub(crate) fn pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.read(name).trim().parse().unwrap()).unwrap()
    }

    /// Returns the program, to run in the folder and with the store in its environment.
    pub(crate) fn lockkeeper(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        self.set_environment(&mut command);
        command.args(args);
        command
    }

    pub(crate) fn set_environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"LOCKKEEPER_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.folder.path())
            .env("LOCKKEEPER_URL", &self.url)
            .stdin(Stdio::null());
    }

    /// Returns setsid(1), which runs a program as the leader of a session of its own.
    pub(crate) fn leader(&self) -> Command {
        if Command::new("setsid").arg("--version").output().is_err() {
            skip("setsid(1) is not on this machine");
        }
        let mut command = Command::new("setsid");
        self.set_environment(&mut command);
        command
    }

    /// Returns unshare(1), which runs a program as the first process of a PID namespace. The program's
    /// session and group are outside of the namespace, so their ids are 0.
    pub(crate) fn namespace(&self, more: &[&'static str]) -> Vec<&'static str> {
        let pids = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let root = [&pids, more].concat();
        let user = [&root[..], &["--user", "--map-root-user"]].concat();
        let may = |unshare: &Vec<&str>| {
            let tried = Command::new("unshare")
                .args(&unshare[1..])
                .arg("true")
                .output();
            tried.is_ok_and(|output| output.status.success())
        };
        let may = [root, user].into_iter().find(may);
        may.unwrap_or_else(|| skip("this user can make no such namespace with unshare(1)"))
    }

    /// Runs a script as the first process of a [`namespace`](Self::namespace). Its `$0` is lockkeeper.
    pub(crate) fn contain(&self, more: &[&'static str], script: &str) -> Output {
        let unshare = self.namespace(more);
        let mut command = Command::new(unshare[0]);
        self.set_environment(&mut command);
        command.args(&unshare[1..]);
        command.args(["sh", "-c", script, env!("CARGO_BIN_EXE_lockkeeper")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap())).output()
    }

    /// Runs `lockkeeper run … -- sh -c SCRIPT` to its end.
    pub(crate) fn run(&self, args: &[&str], script: &str) -> Output {
        self.run_command(args, script).output().unwrap()
    }

    pub(crate) fn run_command(&self, args: &[&str], script: &str) -> Command {
        self.lockkeeper(&[&["run"], args, &["--", "sh", "-c", script]].concat())
    }

    /// Starts `lockkeeper run … -- sh -c SCRIPT` in the background.
    pub(crate) fn start(&self, args: &[&str], script: &str) -> Running {
        let mut command = self.run_command(args, script);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    /// Starts a holder of `name`, which releases it when the file `release` exists.
    pub(crate) fn hold(&self, name: &str) -> Running {
        let held = self.start(
            &[name],
            "touch held; until [ -e release ]; do sleep 0.05; done",
        );
        self.until("the holder holds", || self.exists("held"));
        held
    }

    /// Waits until `happened`, and fails when it does not.
    pub(crate) fn until(&self, what: &str, happened: impl FnMut() -> bool) {
        poll(what, Duration::from_millis(2), happened);
    }

    /// Waits until what `who` shows of `name` fulfils a condition.
    pub(crate) fn until_who(&self, what: &str, name: &str, is_so: impl Fn(&Value) -> bool) {
        // Each poll starts a process, so polls without a pause would keep the processor busy.
        poll(what, Duration::from_millis(30), || is_so(&self.who(name)));
    }

    /// Waits until a command has created a file.
    pub(crate) fn until_file(&self, name: &str) {
        self.until(name, || self.exists(name));
    }

    /// Returns what `who --json` shows of the first holder of `name`.
    pub(crate) fn who(&self, name: &str) -> Value {
        self.holders(name).first().cloned().unwrap_or_default()
    }

    /// Returns what `who --json` shows of `name`.
    pub(crate) fn holders(&self, name: &str) -> Vec<Value> {
        let output = self.lockkeeper(&["who", "--json", name]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", stderr_of(&output)));
        let held = report["held"].as_array().unwrap().clone();
        assert_eq!(code(&output), i32::from(held.is_empty()));
        held
    }

    /// Waits until the store shows `count` processes that wait for `name`.
    pub(crate) fn until_waited_for(&self, name: &str, count: u64) {
        self.until_who("the processes wait", name, |held| {
            held["waiting"].as_u64() == Some(count)
        });
    }

    /// Waits until a process is gone; a zombie is gone.
    pub(crate) fn until_gone(&self, pid: Pid) {
        self.until("the process is gone", || !is_alive(pid));
    }

    /// Waits until `run` knows that its command has ended: a zombie is not gone.
    pub(crate) fn until_reaped(&self, pid: Pid) {
        self.until("the process is reaped", || test_kill_process(pid).is_err());
    }
}

fn poll(what: &str, interval: Duration, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !happened() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(interval);
    }
}

pub(crate) fn is_alive(pid: Pid) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.contains(") Z ") && !stat.contains(") X "),
        Err(_) if cfg!(target_os = "linux") => false,
        Err(_) => test_kill_process(pid).is_ok(),
    }
}

/// Returns the text on standard error.
pub(crate) fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks the exit status of a program.
#[track_caller]
pub(crate) fn exits(output: &Output, status: i32) {
    assert_eq!(code(output), status, "{output:?}");
}

/// Checks that a program ends with this status and prints one line to standard error, which is returned.
#[track_caller]
pub(crate) fn fails(output: &Output, status: i32) -> String {
    exits(output, status);
    let line = stderr_of(output);
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

/// Checks what a text contains.
#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

pub(crate) fn code(output: &Output) -> i32 {
    shell_status(output.status)
}

/// Returns the exit status as a shell shows it: at a terminal, `run` ends by the INT that ended its
/// wait.
fn shell_status(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(by_signal);
    code.unwrap_or_else(|| panic!("{status}"))
}

/// A program that does not outlive the case.
pub(crate) struct Running(pub(crate) Option<Child>);

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the end of the program, and fails if it does not end in time.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.as_mut().unwrap().try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    /// Waits for the end of the program, and returns its output.
    pub(crate) fn output(mut self) -> Output {
        self.ended();
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    pub(crate) fn code(mut self) -> i32 {
        shell_status(self.ended())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
