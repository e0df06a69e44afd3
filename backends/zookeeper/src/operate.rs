//! Finds what is known to break locks in an ensemble, or to make them fail.

use std::io::{Read, Write};
use std::time::{Duration, SystemTime};

use lockkeeper_core::{Error, Finding};
use lockkeeper_register::Call;
use lockkeeper_remote::{Failure, Member, nothing_granted, senseless};

use crate::connection::link::SESSION;
use crate::store::ZooKeeperStore;
use crate::wire::{Acl, Code, Request};

/// The longest answer to a command of four letters that is read.
const LONGEST: u64 = 64 << 10;

pub(crate) fn examine(store: &ZooKeeperStore, call: Call<'_>) -> Result<Vec<Finding>, Error> {
    // An answer from an ensemble that grants locks comes first: without it, there is nothing to examine.
    let acl = store.ask(&[Request::acl(&store.paths.namespace)], call)?;
    let acl = acl.first().ok_or_else(senseless)?.acl()?;
    let members = states(store, call);
    let mut findings = vec![version(&members)];
    findings.extend(modes(&members));
    findings.push(sessions(store, call)?);
    findings.push(
        Finding::fine("path", format!("the nodes are below {}", store.paths.root))
            .meaning("programs that share locks name the same path and the same namespace"),
    );
    findings.push(rights(store, &acl.unwrap_or_default()));
    findings.push(clocks(store, call)?);
    Ok(findings)
}

/// Asks each member that the URL names for its state. Without it, the answer is `None` for a member that does not tell.
fn states(store: &ZooKeeperStore, call: Call<'_>) -> Vec<State> {
    let connect_timeout = store.options.remote.connect_timeout;
    let ask = |member: &Member| {
        let share = store.link.left(call.deadline) / 2;
        let (mut stream, server) = (member.dial(share.min(connect_timeout))?, member.server());
        stream.begin(share);
        let mut said = String::new();
        let asked = stream.write_all(b"srvr").and_then(|()| stream.flush());
        let read = asked.and_then(|()| stream.take(LONGEST).read_to_string(&mut said));
        read.map_err(|error| server.cut().with_source(error))?;
        Ok(said.contains("Mode: ").then_some(said))
    };
    let members = store.link.connector.members().iter();
    members
        .map(|member| (member.server().address().to_owned(), ask(member)))
        .collect()
}

type State = (String, Result<Option<String>, Error>);

fn told(member: &State) -> Option<&str> {
    member.1.as_ref().ok()?.as_deref()
}

fn field<'a>(said: &'a str, name: &str) -> &'a str {
    let mut lines = said.lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    value.map_or("unknown", str::trim)
}

fn version(members: &[State]) -> Finding {
    let topic = "version";
    let said = members.iter().find_map(told);
    match said {
        None => Finding::warning(
            topic,
            "no member tells its version and its mode",
            "this was not checked",
            "set 4lw.commands.whitelist=srvr on the servers",
        ),
        Some(said) => {
            let version = field(said, "Zookeeper version:");
            let version = version.split(['-', ',']).next().unwrap_or(version);
            Finding::fine(topic, format!("ZooKeeper {version}"))
        }
    }
}

fn modes(members: &[State]) -> Vec<Finding> {
    let topic = "members";
    let mut findings = Vec::new();
    let count = members.len();
    if let Some((member, Err(error))) = members.iter().find(|(_, said)| said.is_err()) {
        findings.push(Finding::warning(
            topic,
            format!("{member} of the URL does not answer: {error}"),
            "each that is missing makes an outage by the loss of others more likely",
            "start the member and connect it to the others, or correct its address in the URL",
        ));
    }
    let of_mode = |mode: &str| {
        let is_so = |member: &&State| told(member).is_some_and(|it| field(it, "Mode:") == mode);
        members.iter().filter(is_so).collect::<Vec<_>>()
    };
    let (alone, leaders) = (of_mode("standalone"), of_mode("leader"));
    if alone.len() + leaders.len() > 1 {
        findings.push(Finding::unusable(
            topic,
            "servers of the URL belong to different ensembles",
            "two programs can hold one lock, each on its own server",
            "name the members of one ensemble in the URL",
        ));
    } else if !alone.is_empty() {
        findings.push(Finding::warning(
            topic,
            "the server is no ensemble's member",
            "its loss is an outage until it is back",
            "run three servers or five",
        ));
    } else if count == 1 {
        findings.push(Finding::warning(
            topic,
            "the URL names one member of an ensemble",
            "its loss is an outage for this program",
            "name all members in the URL",
        ));
    }
    if let Some((member, _)) = of_mode("read-only").first() {
        findings.push(Finding::warning(
            topic,
            format!("{member} is cut off from the others and only reads"),
            "the others have to serve this program",
            "connect it to the others",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::fine(topic, format!("{count} members answer")));
    }
    findings
}

/// Finds the limits of a session's time-out, which are those of the ttl.
fn sessions(store: &ZooKeeperStore, call: Call<'_>) -> Result<Finding, Error> {
    let longest = Duration::from_millis(i32::MAX.unsigned_abs().into());
    let left = || store.link.left(call.deadline);
    let opened = store.link.connector.connect(None, longest, left())?;
    let (mut connection, session) = opened.ok_or_else(senseless)?;
    let _ = connection.ask(&[Request::close()], left());
    let (shortest, longest) = (store.min_ttl, session.timeout);
    let found = Finding::fine("ttl", format!("a ttl has {shortest:?} to {longest:?}"));
    Ok(found.meaning(
        "minSessionTimeout to maxSessionTimeout; the name of a dead holder is free up to one tickTime later",
    ))
}

fn rights(store: &ZooKeeperStore, acl: &[(String, String)]) -> Finding {
    let topic = "rights";
    let is_open = acl.iter().any(|(scheme, _)| scheme == "world");
    match (is_open, store.link.connector.acl()) {
        (false, _) => Finding::fine(topic, "only a user of the nodes' ACL may change locks"),
        (true, Acl::Anyone) => Finding::warning(
            topic,
            "everybody who reaches the servers may change locks",
            "another program can take a lock away, or make it fail",
            "give a user and a password in the URL before the nodes are made",
        ),
        (true, Acl::Creator) => Finding::warning(
            topic,
            "the nodes were made without a user, so everybody who reaches the servers may change locks",
            "another program can take a lock away, or make it fail",
            "change their ACL (`setAcl -R`), or use another `namespace`",
        ),
    }
}

/// Compares the clocks by a node that is made for it.
fn clocks(store: &ZooKeeperStore, call: Call<'_>) -> Result<Finding, Error> {
    let left = || store.link.left(call.deadline);
    let opened = store.link.connector.connect(None, SESSION, left())?;
    let (mut connection, session) = opened.ok_or_else(senseless)?;
    let path = store.paths.session(&format!("{:x}-clock", session.id));
    let before = SystemTime::now();
    let requests = [
        Request::create(&path, "", store.link.connector.acl(), true),
        Request::exists(&path, false),
        Request::close(),
    ];
    let replies = connection.ask(&requests, left());
    let replies = replies.map_err(|failure: Failure| nothing_granted(failure))?;
    let after = SystemTime::now();
    let [created, found, _] = &replies[..] else {
        return Err(senseless());
    };
    created.done().map_err(Code::error)?;
    let modified = found.stat()?.ok_or_else(senseless)?.modified;
    let theirs = Duration::from_millis(modified.try_into().unwrap_or(0));
    Ok(Finding::clocks(
        before,
        SystemTime::UNIX_EPOCH + theirs,
        after,
    ))
}
