//! The common keys of a config, parsed once and checked.

use super::keys::{COMMON_KEYS, FALLBACK, KeyValue, MEMBER, REQUIRE, is_list};
use super::keys::{
    EPOCH_OFFSET, HANDOVER_MAX, HANDOVER_TIME, LEASE, MARGIN, MAX_HOLD, NAMESPACE, OPEN_WAIT,
    OUTAGE, TTL, WAIT,
};
use super::{Config, given_twice};
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::name::check_length;
use crate::options::{LeasePolicy, Settings, Wait};

/// A config whose common keys are parsed and checked.
#[derive(Clone, Debug)]
pub(crate) struct ParsedConfig<'a> {
    pub(crate) config: &'a Config,
    pub(crate) namespace: &'a str,
    pub(crate) required: Vec<Capability>,
    pub(crate) open_wait: Wait,
    pub(crate) settings: Settings,
}

impl Config {
    /// Parses and checks the common keys. Talks to no store.
    pub(crate) fn parse(&self) -> Result<ParsedConfig<'_>, Error> {
        let mut given = self.values.iter();
        if let Some((key, _)) = given.find(|(key, values)| values.len() > 1 && !is_list(key)) {
            return Err(self.about(key, given_twice(key)));
        }
        let namespace = self.text(&NAMESPACE.spec).unwrap_or("default");
        let about = |key| move |error| self.about(key, error);
        check_length("a namespace", namespace).map_err(about("namespace"))?;
        let lists = self.texts(&REQUIRE.spec).iter();
        let required = lists.flat_map(|list| list.split(','));
        let wait = self.value(&WAIT)?;
        let settings = Settings {
            lease: self.lease_policy()?,
            wait: wait.unwrap_or(Wait::AtMost(LockKeeper::DEFAULT_WAIT)),
            max_hold: self.value(&MAX_HOLD)?,
            outage: self.value(&OUTAGE)?.unwrap_or_default(),
            margin: self.value(&MARGIN)?,
            handover_max: self
                .value(&HANDOVER_MAX)?
                .unwrap_or(LockKeeper::DEFAULT_HANDOVER_MAX),
            handover_time: self
                .value(&HANDOVER_TIME)?
                .unwrap_or(LockKeeper::DEFAULT_HANDOVER_TIME),
            epoch_offset: self.value(&EPOCH_OFFSET)?.unwrap_or_default(),
        };
        let lease = settings.lease.check(&Capabilities::new());
        lease.map_err(about("ttl"))?;
        settings.wait.check().map_err(about("wait"))?;
        let open_wait = self.value(&OPEN_WAIT)?;
        let open_wait = open_wait.unwrap_or(Wait::AtMost(Duration::ZERO));
        open_wait.check().map_err(about("open_wait"))?;
        Ok(ParsedConfig {
            config: self,
            namespace,
            required: required
                .map(|name| name.trim().parse())
                .collect::<Result<_, _>>()
                .map_err(about("require"))?,
            open_wait,
            settings,
        })
    }

    /// Leaves the range of the ttl to [`LeasePolicy::check`], which knows that of each store.
    fn lease_policy(&self) -> Result<LeasePolicy, Error> {
        let refused = |text| self.about("ttl", TTL.spec.refused(text));
        let ttl = match self.text(&TTL.spec) {
            Some(text) => KeyValue::from_text(text).ok_or_else(|| refused(text))?,
            None => LockKeeper::DEFAULT_TTL,
        };
        Ok(match self.value(&LEASE)?.as_deref() {
            Some("fixed") => LeasePolicy::Fixed { ttl },
            _ => LeasePolicy::Renewed { ttl },
        })
    }

    /// Returns the stores to open if this one is unreachable, with the common keys of this one.
    pub(crate) fn fallbacks(&self) -> Result<Vec<Config>, Error> {
        self.listed(FALLBACK.spec.name, "fallback")
    }

    /// Returns the stores that this one is made of, with the common keys of this one.
    pub(crate) fn members(&self) -> Result<Vec<Config>, Error> {
        self.listed(MEMBER.spec.name, "member")
    }

    /// Takes over a key that this config lacks, and the variable that the key is from.
    pub(crate) fn inherit(&mut self, key: &str, from: &Self) {
        if self.values.contains_key(key) {
            return;
        }
        if let Some(values) = from.values.get(key) {
            self.values.insert(key.to_owned(), values.clone());
        }
        if let Some(variable) = from.variables.get(key) {
            self.variables.insert(key.to_owned(), variable.clone());
        }
    }

    /// Returns the stores whose URLs a key lists, with the common keys of this one.
    fn listed(&self, name: &str, what: &str) -> Result<Vec<Config>, Error> {
        let listed = |url: &String| {
            let mut other = Self::from_url(url).map_err(|error| self.about(name, error))?;
            if let Some(variable) = self.variables.get(name) {
                other.is_from(variable);
            }
            for key in COMMON_KEYS.iter().map(|key| key.name) {
                if other.values.contains_key(key) {
                    let text = format!(
                        "the {what} sets `{key}`; set it once, on the first store, for all of them"
                    );
                    return Err(self.about(name, Error::new(ErrorKind::InvalidValue, text)));
                }
                other.inherit(key, self);
            }
            other.notifier.clone_from(&self.notifier);
            other.clock = Arc::clone(&self.clock);
            Ok(other.without(FALLBACK.spec.name))
        };
        let urls = self.values.get(name).map_or(&[][..], Vec::as_slice);
        urls.iter().map(listed).collect()
    }
}
