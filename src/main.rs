//! The `pumice` program: everything is in [`pumice::cli`].

fn main() -> std::process::ExitCode {
    pumice::cli::main()
}
