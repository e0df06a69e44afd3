//! The interface for operators.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{Admin, Error, Finding, HeldName, Holder, HostInstant, LockName, Mode};

use crate::entry::{Contents, Lease};
use crate::key::Key;
use crate::register::Register;
use crate::store::{Call, Read};
use crate::watch::{evictions, signal};

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Register").field(&self.store).finish()
    }
}

impl Admin for Register {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let call = Call::until(deadline);
        let entries = match name {
            Some(name) => {
                let keys = [Mode::Exclusive, Mode::Permit { limit: 1 }];
                let keys = keys.map(|mode| Key::of(name, mode));
                let keys = &keys.each_ref()[..];
                let read = Read {
                    keys,
                    ..Read::default()
                };
                let entries = self.store.read(&read, call)?.entries;
                entries.into_iter().flatten().collect()
            }
            None => self.store.list(call)?,
        };
        let contents = entries.iter().map(|entry| Contents::read(&entry.value));
        // `examine` tells of the others.
        let is_shown = |it: &Result<Contents, Error>| name.is_some() || it.is_ok();
        let contents = contents.filter(is_shown);
        let mut contents = contents.collect::<Result<Vec<_>, _>>()?;
        let ended = self.ended_of(contents.iter(), call)?;
        let ended: BTreeSet<_> = ended.iter().collect();
        let mut held = Vec::new();
        for contents in &mut contents {
            contents.end(|session| ended.contains(session));
            let key = Key::read(&contents.key);
            if let Some((name, _)) = key.name() {
                let leases = contents.leases.iter();
                held.extend(leases.map(|lease| held_name(name, lease, contents.queue.len())));
            }
        }
        held.sort_by(|a, b| (&a.name, a.slot, a.epoch).cmp(&(&b.name, b.slot, b.epoch)));
        Ok(held)
    }

    /// Removes the lease, and signals that to the keepers, where the store notifies.
    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let call = Call::until(deadline);
        let key = Key::of(&LockName::new(&*held.name)?, held.mode);
        let mark = held.mark.split_once('@');
        let mark = mark.and_then(|(owner, epoch)| Some((owner, epoch.parse().ok()?)));
        let Some((owner, epoch)) = mark else {
            return Ok(false);
        };
        if !self.remove(&key, owner, (Some(epoch), false), call)? {
            return Ok(false);
        }
        let key = evictions();
        loop {
            let keys = &[&key];
            let read = Read {
                keys,
                ..Read::default()
            };
            let view = self.store.read(&read, call)?;
            let seen = view.entries.into_iter().next().flatten();
            let seen = seen.map(|entry| entry.version);
            if signal(&*self.store, &key, seen, call)?.is_some() {
                return Ok(true);
            }
        }
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        let call = Call::until(deadline);
        let mut findings = self.store.examine(call)?;
        let entries = self.store.list(call)?;
        let unreadable = entries.iter().map(|it| Contents::read(&it.value));
        let mut unreadable = unreadable.filter_map(Result::err);
        if let Some(first) = unreadable.next() {
            findings.push(Finding::warning(
                "entries",
                format!("{} entries cannot be read: {first}", unreadable.count() + 1),
                "their names cannot be locked",
                "find out which program writes them, and remove them",
            ));
        }
        Ok(findings)
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &["how long it is kept without a renewal"]
    }
}

fn held_name(name: &str, lease: &Lease, waiting: usize) -> HeldName {
    HeldName {
        mode: lease.mode,
        slot: lease.mode.is_permit().then_some(lease.slot),
        holder: Holder {
            host: Some(lease.host.clone()),
            pid: Some(lease.pid),
            label: Some(lease.label.clone()).filter(|it| !it.is_empty()),
            since: UNIX_EPOCH.checked_add(Duration::from_millis(lease.since)),
            // The owner and the epoch identify a hold: `force_release` ends one lease, and not its session.
            session: None,
        },
        epoch: Some(lease.epoch),
        waiting: u64::try_from(waiting).ok(),
        ..HeldName::new(name, format!("{}@{}", lease.owner, lease.epoch))
    }
}
