//! A grant of the provider.

use std::sync::Arc;

use lockkeeper_core::{Proof, ProofValue};

use crate::dialect::Dialect;
use crate::names::EncodedName;
use crate::sessions::Session;
use crate::statements::{self, SessionId};

/// A grant of a [`MySqlProvider`](crate::MySqlProvider).
#[derive(Debug)]
pub struct MySqlLease {
    pub(crate) session: Arc<Session>,
    pub(crate) name: EncodedName,
    pub(crate) epoch: u64,
}

impl MySqlLease {
    pub(crate) fn proof(&self, dialect: Dialect) -> Proof {
        let SessionId { id, start } = self.session.id;
        let values = [
            start.to_string(),
            format!("'{}'", self.name),
            id.to_string(),
        ];
        let set = |sql: String, value: &String| sql.replacen('?', value, 1);
        Proof {
            dialect: dialect.name(),
            sql: values.iter().fold(statements::PROOF.to_owned(), set),
            statement: statements::PROOF,
            params: vec![
                ProofValue::Integer(start.cast_signed()),
                ProofValue::Text(self.name.to_string()),
                ProofValue::Integer(id.cast_signed()),
            ],
        }
    }
}
