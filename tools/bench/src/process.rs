//! Child processes of this program, which work when the parent tells them to.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use lockkeeper::LockKeeper;

use crate::{contended, modes, once, scale};

/// The first argument of a child process.
pub(crate) const CHILD: &str = "--child";

/// What a child does at each line of its input.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// 25 threads lock one name.
    Threads,
    /// 25 threads acquire permits of one name.
    Permits,
    /// A thread locks a name that another process holds.
    Handovers,
    /// A few threads lock names of their own.
    Names,
    /// Many threads use as many names once as the line says.
    Once,
}

impl Role {
    const ALL: [Self; 5] = [
        Self::Threads,
        Self::Permits,
        Self::Handovers,
        Self::Names,
        Self::Once,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Permits => "permits",
            Self::Handovers => "handovers",
            Self::Names => "names",
            Self::Once => "once",
        }
    }

    /// Carries out a line of the input, and returns the result.
    fn work(self, keeper: &LockKeeper, line: &str) -> Result<String, Box<dyn Error>> {
        match self {
            Self::Threads => contended::lock_in_child(keeper),
            Self::Permits => modes::hold_in_child(keeper),
            Self::Handovers => contended::take_over_in_child(keeper),
            Self::Names => scale::lock_in_child(keeper),
            Self::Once => once::use_in_child(keeper, line),
        }
    }
}

/// A child of this program, and its output. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a child, and returns when it has opened its keeper.
    pub(crate) fn start(role: Role, url: &str) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD, role.name(), url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut process = Self { child, stdout };
        process.line()?;
        Ok(process)
    }

    /// Starts several children.
    pub(crate) fn start_all(
        count: usize,
        role: Role,
        url: &str,
    ) -> Result<Vec<Self>, Box<dyn Error>> {
        (0..count).map(|_| Self::start(role, url)).collect()
    }

    /// Tells all children to work once, together, and returns the result of each.
    pub(crate) fn work(all: &mut [Self]) -> Result<Vec<String>, Box<dyn Error>> {
        all.iter_mut().try_for_each(Self::go)?;
        all.iter_mut().map(Self::line).collect()
    }

    /// Tells the child to work once.
    pub(crate) fn go(&mut self) -> Result<(), Box<dyn Error>> {
        self.send("go")
    }

    /// Tells the child to work once, by what the line says.
    pub(crate) fn send(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        writeln!(self.child.stdin.as_mut().ok_or("no input")?, "{line}")?;
        Ok(())
    }

    /// Returns the next line of the child's output.
    pub(crate) fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a child process: reports that it is ready, works at each line of its input, and prints the results.
pub(crate) fn child(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [role, url] = arguments else {
        return Err("a child takes a role and a URL".into());
    };
    let role = Role::ALL.into_iter().find(|it| it.name() == role);
    let role = role.ok_or("no such role")?;
    let keeper = lockkeeper::open(url)?;
    println!("ready");
    for line in std::io::stdin().lines() {
        println!("{}", role.work(&keeper, &line?)?);
    }
    Ok(())
}
