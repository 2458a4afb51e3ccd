//! The report of a scan.

use super::medium::OnMedium;
use super::outcome::{BARS, ConfigOutcome, Estimate, FileOutcome, GroupOutcome, Outcome};
use super::passed::Passed;
use super::provision::Provision;
use super::verdict::{Drive, Expected, Range, pumice};
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_report::{Align, Axis, Bar, BarChart, Cell, Column, Document, Number, Section, Table};

impl Outcome {
    /// Returns the full report, with the verdicts on drives and the speed on a medium.
    pub fn document(&self, drives: &[Drive], on_medium: Option<&OnMedium>) -> Document {
        let mut document = Document::new("Compressibility of the data", self.lead());
        let section = document.section("scanned data");
        section.pairs(self.facts());
        self.warn(section);
        document.section("stored fraction").block(self.config_table());
        let section = document.section("distribution");
        section.paragraph(format!(
            "Share of the data by the stored fraction of its chunks with {}.",
            self.main().config
        ));
        section.block(histogram(self.main()));
        self.groups(&mut document);
        self.files(&mut document);
        let section = document.section("conclusions");
        section.paragraph(pumice(self));
        if let Some(on_medium) = on_medium {
            section.paragraph(on_medium.words(self));
        }
        if let Some((_, why)) = &self.choice {
            section.paragraph(format!("Recommended codec: {why}."));
        }
        if let Some(provision) = Provision::of(self) {
            section.paragraph(provision.words()).preformatted(&provision.command);
        }
        for drive in drives {
            let section = document.section(&drive.name);
            section.paragraph(&drive.verdict).block(drive_table(drive));
        }
        document
    }

    /// Returns a table with a row for each configuration and group.
    pub fn table(&self) -> Table {
        let names = ["kind", "name"].map(Column::left);
        let numbers = ["bytes", "stored", "low", "high", "stored by the codec", "MB/s"];
        let mut table =
            Table::with_columns(names.into_iter().chain(numbers.map(Column::right)).collect());
        let of = |estimate: &Estimate| {
            [estimate.stored, estimate.stored_low, estimate.stored_high]
                .map(|number| Cell::from(Number::new(number, 4)))
        };
        for it in &self.configs {
            let [stored, low, high] = of(&it.drive);
            table.push(vec![
                "configuration".into(),
                it.config.to_string().into(),
                Number::new(self.bytes as f64, 0).into(),
                stored,
                low,
                high,
                Number::new(it.codec.stored, 4).into(),
                it.mb_per_s.map(|speed| Number::new(speed, 0)).into(),
            ]);
        }
        let kinds =
            [("extension", &self.extensions), ("folder", &self.folders), ("age", &self.ages)];
        for (kind, groups) in kinds {
            for group in groups {
                let mut cells = vec![
                    kind.into(),
                    group.name.as_str().into(),
                    Number::new(group.bytes as f64, 0).into(),
                ];
                cells.extend(group.drive.iter().flat_map(of));
                table.push(cells);
            }
        }
        table
    }

    fn lead(&self) -> String {
        let main = self.main();
        let what = match (self.is_exact, self.is_complete) {
            (true, _) => "everything was read".to_owned(),
            (false, true) => format!(
                "within {:.2} points with a confidence of {} % or more, from {} of data",
                main.drive.error_points(),
                self.confidence_percent,
                format_size(self.bytes_read)
            ),
            (false, false) => "the scan was interrupted".to_owned(),
        };
        if self.bytes_read == 0 {
            return format!("Nothing was measured; {what}.");
        }
        let of = match self.covered_percent {
            100.0 => String::new(),
            percent => format!(" of the {percent:.1} % that were read"),
        };
        format!("With {}: {}{of}; {what}.", main.config, main.drive.saved)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let data = format!("{} in {} files", format_size(self.bytes), self.files);
        let read = match self.draws {
            0 if self.is_exact => format_size(self.bytes_read),
            0 => format!("{} ({:.1} %)", format_size(self.bytes_read), self.covered_percent),
            draws => {
                let percent = 100.0 * self.bytes_read as f64 / self.bytes.max(1) as f64;
                format!("{} ({percent:.2} %) in {draws} draws", format_size(self.bytes_read))
            }
        };
        let copies = &self.duplicates;
        let about = copies.percent.map_or(String::new(), |percent| {
            format!("about {percent:.1} % (deviation {:.1} points), ", copies.deviation_points)
        });
        let of = if self.covered_percent < 100.0 { " that were read" } else { "" };
        let duplicates = format!(
            "{about}at most {:.1} % of the blocks{of} ({})",
            copies.most_percent, copies.method
        );
        let mut facts = vec![
            ("scanned", self.paths.join(", ")),
            ("data", data),
            ("read", read),
            ("one byte repeated", format!("{:.2} % of the blocks{of}", self.fill_percent)),
            ("duplicates", duplicates),
        ];
        if self.shard != "1/1" {
            facts.insert(1, ("shard", self.shard.clone()));
        }
        if let Some(text) = passed_by(&self.passed) {
            facts.push(("not scanned", text));
        }
        facts
    }

    fn warn(&self, section: &mut Section) {
        for remark in &self.remarks {
            section.warning(remark);
        }
        if !self.is_complete {
            section.warning(match self.draws {
                0 => "Interrupted: all figures cover the data read so far; the rest is unknown.",
                _ => "Interrupted: the interval is valid, but wider than requested.",
            });
        } else if !self.is_exact && self.main().drive.error_points() > self.error_points_asked {
            section.warning(format!(
                "The error is {:.2} points instead of the requested {}: take more draws \
                 (--samples), or read everything (--all).",
                self.main().drive.error_points(),
                self.error_points_asked
            ));
        }
        let failed = self.failed.unreadable + self.failed.changed + self.passed.unreadable;
        if failed > 0 {
            let examples: Vec<&str> = self
                .passed
                .examples
                .iter()
                .chain(&self.failed.examples)
                .take(3)
                .map(String::as_str)
                .collect();
            section.warning(format!(
                "{failed} files or folders could not be read ({:.2} % of the bytes) and \
                 are not included in any figure: {}",
                self.lost_percent,
                examples.join("; ")
            ));
        }
    }

    fn config_table(&self) -> Table {
        let mut table = Table::with_columns(vec![
            Column::left("codec"),
            Column::right("chunk"),
            Column::right("saved").with_unit("%"),
            Column::right("stored"),
            Column::right("ratio"),
            Column::left("interval of stored"),
            Column::right("codec alone").with_unit("stored"),
            Column::right("speed").with_unit("MB/s a thread"),
            Column::left(""),
        ]);
        for (index, it) in self.configs.iter().enumerate() {
            let is_chosen = self.choice.as_ref().is_some_and(|(choice, _)| *choice == index);
            table.push(vec![
                it.config.codec.to_string().into(),
                format_size_exact(it.config.chunk_bytes.into()).into(),
                Number::new(it.drive.saved.percent(), 1).into(),
                Number::new(it.drive.stored, 3).into(),
                Number::new(1.0 / it.drive.stored, 2).into(),
                self.interval(&it.drive).into(),
                Number::new(it.codec.stored, 3).into(),
                it.mb_per_s.map(|speed| Number::new(speed, 0)).into(),
                if is_chosen { "choose".into() } else { Cell::Empty },
            ]);
        }
        table
    }

    fn groups(&self, document: &mut Document) {
        let kinds = [
            ("by extension", "extension", &self.extensions),
            ("by folder", "folder", &self.folders),
            ("by last change", "changed", &self.ages),
        ];
        for (heading, name, groups) in kinds {
            if groups.len() > 1 {
                document.section(heading).block(self.group_table(name, groups));
            }
        }
    }

    fn group_table(&self, name: &str, groups: &[GroupOutcome]) -> Table {
        let mut table = Table::with_columns(vec![
            Column::left(name),
            Column::right("data"),
            Column::right("share").with_unit("%"),
            Column::right("saved").with_unit("%"),
            Column::right("stored"),
            Column::left("interval of stored"),
        ]);
        let all_bytes = self.bytes as f64 * self.covered_percent / 100.0;
        for group in groups {
            let name = if group.name.is_empty() { "(none)" } else { &group.name };
            let drive = group.drive.as_ref();
            table.push(vec![
                name.into(),
                format_size(group.bytes).into(),
                Number::new(100.0 * group.bytes as f64 / all_bytes.max(1.0), 1).into(),
                drive.map(|it| Number::new(it.saved.percent(), 1)).into(),
                drive.map(|it| Number::new(it.stored, 3)).into(),
                drive.map_or("no draw fell here".to_owned(), |it| self.interval(it)).into(),
            ]);
        }
        table
    }

    fn interval(&self, estimate: &Estimate) -> String {
        if self.covered_percent < 100.0 {
            "not known".to_owned()
        } else if estimate.stored_low == estimate.stored_high {
            "exact".to_owned()
        } else {
            format!("{:.3} to {:.3}", estimate.stored_low, estimate.stored_high)
        }
    }

    fn files(&self, document: &mut Document) {
        if !self.formats_percent.is_empty() {
            let mut table =
                Table::new(&[("format", Align::Left), ("% of the bytes", Align::Right)]);
            for (name, percent) in &self.formats_percent {
                table.push(vec![name.as_str().into(), Number::new(*percent, 2).into()]);
            }
            document.section("compressed already").block(table);
        }
        for (heading, files) in
            [("files that save most", &self.best), ("files that take most", &self.worst)]
        {
            if files.len() > 1 {
                document.section(heading).block(file_table(files));
            }
        }
    }
}

fn histogram(config: &ConfigOutcome) -> BarChart {
    let axis = Axis::new("share of the data", "%");
    let mut chart = BarChart::new("", "stored, %", axis, ["data"]).as_histogram();
    for (index, percent) in config.spread_percent.iter().enumerate() {
        let width = 100 / BARS;
        let name = format!("{}-{}", index * width, (index + 1) * width);
        chart.group(name, vec![Bar::from(Number::new(*percent, 1))]);
    }
    chart
}

fn file_table(files: &[FileOutcome]) -> Table {
    let mut table = Table::with_columns(vec![
        Column::left("file"),
        Column::right("data"),
        Column::right("stored"),
        Column::left("format"),
    ]);
    for file in files {
        // Names start with the index of the named path.
        let name = file.name.split_once('/').map_or(file.name.as_str(), |(_, name)| name);
        table.push(vec![
            name.into(),
            format_size(file.bytes).into(),
            Number::new(file.stored, 3).into(),
            file.format.clone().into(),
        ]);
    }
    table
}

fn drive_table(drive: &Drive) -> Table {
    let mut columns = vec![
        Column::left("random writes of 4 KiB, steady"),
        Column::right("drive"),
        Column::left("range"),
    ];
    if drive.uncompressed.is_some() {
        columns.push(Column::right("uncompressed"));
    }
    let mut table = Table::with_columns(columns);
    type Row = (&'static str, usize, fn(&Expected) -> Option<Range>);
    let rows: [Row; 4] = [
        ("MB/s", 1, |it| Some(it.mb_per_s)),
        ("write amplification", 2, |it| Some(it.write_amplification)),
        ("endurance, TB", 1, |it| it.endurance_tb),
        ("lasts, years", 1, |it| it.years),
    ];
    for (name, decimals, of) in rows {
        let Some(range) = of(&drive.drive) else { continue };
        let mut cells = vec![
            name.into(),
            Number::new(range.is, decimals as u8).into(),
            format!("{:.decimals$} to {:.decimals$}", range.low, range.high).into(),
        ];
        if let Some(plain) = drive.uncompressed.as_ref().and_then(of) {
            cells.push(Number::new(plain.is, decimals as u8).into());
        }
        table.push(cells);
    }
    table
}

fn passed_by(passed: &Passed) -> Option<String> {
    let counts = [
        (passed.links, "links"),
        (passed.further_names, "further names of files"),
        (passed.special_files, "special files"),
        (passed.other_file_systems, "other file systems"),
        (passed.empty_files, "empty files"),
    ];
    let mut parts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if passed.hole_bytes > 0 {
        parts.push(format!("{} of holes", format_size(passed.hole_bytes)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}
