//! Goal: tables of simulated drives in the documents have the numbers of the current program.
//!
//! Method: `docs/tables.py` computes them in virtual time, so each number is exact on every
//! machine. This test computes the rows that take seconds, one for most tables; `make tables`
//! computes all.

use std::path::Path;
use std::process::Command;

use crate::harness::{COMMAND_LIMIT, PUMICE, run, tool};

/// Guards against tables that are not updated when the simulation changes.
#[test]
fn quick_rows_of_documents_match_the_simulation() {
    let Some(python) = tool("python3") else { return };
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tables.py"));
    let mut command = Command::new(python);
    let finished = run(command.arg(script).arg(PUMICE).args(["--check", "--quick"]), COMMAND_LIMIT);
    assert_eq!(finished.code, Some(0), "run `make tables`\n{}{}", finished.stdout, finished.stderr);
}
