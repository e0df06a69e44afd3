//! The admin interface of the in-process store.

use lockkeeper_core::{Admin, Error, Finding, HeldName, Holder, HostInstant, LockName};

use super::{Shard, Store};

impl Admin for Store {
    fn held(
        &self,
        name: Option<&LockName>,
        _deadline: HostInstant,
    ) -> Result<Vec<HeldName>, Error> {
        let now = self.clock.now();
        let shards = match name {
            Some(name) => std::slice::from_ref(self.shard(name.hash64())),
            None => &self.shards[..],
        };
        let mut found: Vec<_> = shards
            .iter()
            .flat_map(Shard::view)
            .filter(|entry| now < entry.expires && name.is_none_or(|name| entry.name == *name))
            .map(|entry| HeldName {
                holder: Holder {
                    pid: Some(std::process::id()),
                    ..Holder::default()
                },
                epoch: Some(entry.epoch),
                remaining: Some(entry.expires.saturating_since(now)),
                waiting: u64::try_from(entry.waiting).ok(),
                ..HeldName::new(entry.name.as_str(), entry.epoch.to_string())
            })
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn force_release(&self, held: &HeldName, _deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let epoch = held.mark.parse().unwrap_or(0);
        let now = self.clock.now();
        Ok(self.shard(name.hash64()).evict(&name, Some(epoch), now))
    }

    fn examine(&self, _deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        Ok(vec![Finding::warning(
            "reach",
            "the locks live in the memory of one process",
            "they exclude the threads of that process, and no other process",
            "use sqlite: for several programs of one host, or a server for several hosts",
        )])
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &["the holder's thread", "since when it is held"]
    }
}
