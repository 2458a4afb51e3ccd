//! `pumice schema`: the JSON schemas of results, generated from the types that are printed.
//!
//! Doc comments of types and fields become descriptions.

use anyhow::{Context, Result};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::*;
#[cfg(feature = "bench")]
use pumice_bench::{
    compare::Comparison,
    detect::Detection,
    forecast::{Forecast, Grid},
    results::{CellSummary, line_schema},
    workload::Plan,
};
use pumice_drive::controller::{CheckReport, Compacted, Resized, ScrubReport};
use pumice_drive::media::array::ArrayInfo;

/// Print the JSON schema of a result, or the names of all schemas
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice schema
  pumice schema info-1")]
pub(crate) struct Args {
    /// Name of the schema: the field `schema` of the result
    name: Option<String>,
}

/// The name of a schema, the command whose output it describes, and its generator.
type Row = (&'static str, &'static str, fn(&mut SchemaGenerator) -> Schema);

const SCHEMAS: &[Row] = &[
    #[cfg(feature = "attach")]
    ("attach-1", "attach --json", attach::Attached::json_schema),
    ("check-1", "check --json", CheckReport::json_schema),
    ("clients-1", "clients --json", <Vec<clients::Shown>>::json_schema),
    ("clone-1", "clone --json", clone::Cloned::json_schema),
    ("compact-1", "compact --json", Compacted::json_schema),
    ("create-1", "create --json", create::Created::json_schema),
    #[cfg(feature = "attach")]
    ("detach-1", "detach --json", detach::Detached::json_schema),
    ("device-1", "device --json", ArrayInfo::json_schema),
    ("diff-1", "diff --json", diff::Shown::json_schema),
    ("extract-1", "extract --json", extract::Summary::json_schema),
    ("flatten-1", "flatten --json", flatten::Shown::json_schema),
    ("info-1", "info --json", info::Shown::json_schema),
    ("key-1", "key --json", key::Shown::json_schema),
    ("list-1", "list --json", <Vec<list::Listed>>::json_schema),
    ("locked-1", "info --json without the key", info::Visible::json_schema),
    ("rebuild-1", "rebuild --json", rebuild::Summary::json_schema),
    ("receive-1", "receive --json", receive::Shown::json_schema),
    ("rekey-1", "rekey --json", rekey::Shown::json_schema),
    ("resize-1", "resize --json", Resized::json_schema),
    ("scrub-1", "scrub --json", ScrubReport::json_schema),
    ("send-1", "send --json", send::Shown::json_schema),
    ("serve-1", "serve --json", serve::Shown::json_schema),
    ("set-1", "set --json", set::Changed::json_schema),
    ("snapshot-1", "snapshot --json", snapshot::Shown::json_schema),
    #[cfg(feature = "top")]
    ("top-1", "top --json", <Vec<top::Sample>>::json_schema),
];

#[cfg(feature = "bench")]
const MEASURED: &[Row] = &[
    ("bench-1", "bench --json", <Vec<CellSummary>>::json_schema),
    ("compare-1", "compare --json, or bench --json of several targets", Comparison::json_schema),
    ("demo-1", "demo --json", demo::DemoResult::json_schema),
    ("detect-1", "bench --detect-compression --json", Detection::json_schema),
    ("drive-1", "drives NAME --json", drives::Explained::json_schema),
    ("drives-1", "drives --json", <Vec<drives::Listed>>::json_schema),
    ("forecast-1", "forecast --json", Forecast::json_schema),
    ("forecasts-1", "forecast --json of several cases", Grid::json_schema),
    ("payload-1", "payload --json", payload::Made::json_schema),
    ("plan-1", "bench --dry-run --json", Plan::json_schema),
    ("profile-1", "payload --profile-of --json", payload::Profiled::json_schema),
    ("reproduce-1", "reproduce --json", reproduce::Summary::json_schema),
    ("results-2", "bench --output, each line of the file", line_schema),
    ("scan-1", "scan --json", scan::Shape::json_schema),
];

#[cfg(not(feature = "bench"))]
const MEASURED: &[Row] = &[];

/// Runs `pumice schema`.
///
/// # Errors
/// There is no such schema, or stdout cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut rows = SCHEMAS.iter().chain(MEASURED);
    let text: String = match &args.name {
        None => rows.map(|(name, command, _)| format!("{name:11}  pumice {command}\n")).collect(),
        Some(name) => {
            let row = rows.find(|(known, ..)| known == name);
            let row = row.with_context(|| format!("no schema '{name}' (see pumice schema)"))?;
            serde_json::to_string_pretty(&schema(*row)).expect("schemas serialize") + "\n"
        }
    };
    print(&text)?;
    Ok(Outcome::Good)
}

fn schema((name, command, generate): Row) -> Schema {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generate(&mut generator);
    schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("$id".into(), name.into());
    schema.insert("title".into(), format!("Output of pumice {command}").into());
    schema.insert("$defs".into(), generator.take_definitions(false).into());
    // The name of the schema is in every object of a list.
    let listed = schema.pointer("/items/$ref").and_then(Value::as_str).map(str::to_owned);
    let object = schema.pointer_mut(&listed.unwrap_or_default()).expect("a definition");
    if let Some(Value::Object(fields)) = object.get_mut("properties") {
        let description = "Name and version of this schema.";
        fields.insert("schema".into(), json!({ "const": name, "description": description }));
        object["required"].as_array_mut().expect("a list").push("schema".into());
    }
    RecursiveTransform(describe).transform(&mut schema);
    schema
}

/// Turns the doc comment of a type or field into a description for other programs.
fn describe(schema: &mut Schema) {
    // Values for fields that old files lack: a result has all fields.
    schema.remove("default");
    if let Some(Value::String(text)) = schema.get_mut("description") {
        let paragraphs = text.split("\n\n");
        let paragraphs = paragraphs.map(|it| it.split_whitespace().collect::<Vec<_>>().join(" "));
        let plain = paragraphs.collect::<Vec<_>>().join("\n\n");
        *text = plain.replace("[`", "`").replace("`]", "`").replace("`None`", "null");
    }
}
