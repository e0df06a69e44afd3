//! Commit proofs on connections of the application's own.

use lockkeeper_core::{CommitProof, ProofValue, Released};
use lockkeeper_postgres::{PlainClient, PostgresOptions};
use lockkeeper_testkit::{PostgresKind, PostgresServer, cases};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, open, start, start_own};

pub(crate) const CASES: &[Case] = cases![
    proof_is_for_one_lease_on_one_server,
    proof_fits_other_users_and_databases,
];

/// Returns what the proof says, whose two forms must agree.
fn held(server: &PostgresServer, proof: &CommitProof<'_>) -> String {
    let text = server.value(proof.sql()).unwrap();
    let types = proof
        .params()
        .iter()
        .map(|_| "int8")
        .collect::<Vec<_>>()
        .join(",");
    let values: Vec<_> = proof.params().iter().map(ProofValue::to_string).collect();
    let prepared = server
        .rows(&format!(
            "PREPARE proof ({types}) AS {}; EXECUTE proof ({})",
            proof.statement(),
            values.join(",")
        ))
        .unwrap();
    assert_eq!(prepared, [[text.clone()]], "{proof:?}");
    text
}

fn proof_is_for_one_lease_on_one_server(kind: PostgresKind) {
    let (server, elsewhere) = (start(kind), start_own(kind));
    let keeper = open(&server, "");
    let guard = keeper.lock("a").unwrap();
    let proof = guard.commit_proof().unwrap();
    assert_eq!(proof.dialect(), "PostgreSQL");
    let (sql, here) = (proof.sql().to_owned(), held(&server, &proof));
    assert_eq!(
        (here.as_str(), held(&elsewhere, &proof).as_str()),
        ("1", "0")
    );
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(server.value(&sql).unwrap(), "0");
}

fn proof_fits_other_users_and_databases(kind: PostgresKind) {
    let server = start_own(kind);
    server
        .execute("CREATE ROLE other LOGIN PASSWORD 's3cret'")
        .unwrap();
    let keeper = open(&server, "");
    let guard = keeper.lock("a").unwrap();
    let proof = guard.commit_proof().unwrap();
    let sql = proof.sql().to_owned();
    let mut clients = [PostgresServer::DATABASE, "template1"].map(|database| {
        // pg_hba.conf lets this user in by the socket.
        let options = PostgresOptions::unix(server.socket())
            .user("other")
            .password("s3cret")
            .database(database);
        PlainClient::connect(&options).unwrap()
    });
    let mut held = || {
        clients.each_mut().map(|client| {
            let reply = client.run(&sql, WAIT_LIMIT).unwrap();
            reply.rows[0][0].clone().unwrap()
        })
    };
    assert_eq!(held(), ["1", "1"]);
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(held(), ["0", "0"]);
}
