"""Operations on experiments, configs, runs and reports; every state transition goes through a service."""

from .advice import advice_config_save, advice_sweep_save, advice_trial_add
from .attempts import launch_store, lock_attempt, summary_store
from .audit import audit_add, audit_forget
from .configs import config_check, config_save
from .events import event_add, node_lost, run_ended
from .experiments import experiment_clone, experiment_create, experiment_delete, experiment_is_at_rest
from .findings import finding_acknowledge, finding_reopen, findings_refresh, run_findings_refresh
from .groups import groups_refresh
from .log_formats import log_format_delete, log_format_save
from .logins import login_failed, login_succeeded, login_wait_s
from .marks import (
    comment_add,
    comment_edit,
    run_note_save,
    runs_star,
    runs_tag,
    runs_unstar,
    runs_untag,
)
from .members import attempt_lose, attempt_report, cause_text, first_cause, lock_members
from .node_keys import (
    find_code,
    find_key,
    key_used,
    node_code_create,
    node_enrol,
    node_key_rotate,
    node_keys_revoke,
    rotation_order,
    signing_key,
    signing_keys,
)
from .pictures import (
    file_store,
    picture_add,
    picture_delete,
    picture_job_claim,
    picture_job_end,
    picture_job_note,
    picture_jobs_stalled,
    pictures_request,
)
from .published import published_run_add
from .refused import refused_store
from .reports import (
    Stale,
    report_create,
    report_delete,
    report_editing,
    report_link_create,
    report_link_revoke,
    report_publish,
    report_save,
)
from .runs import Launch, config_launch, run_cancel_request, run_relaunch
from .schedules import schedule_save
from .shelves import (
    RunContents,
    experiments_archive,
    experiments_restore,
    experiments_tag,
    experiments_untag,
    runs_archive,
    runs_contents,
    runs_delete,
    runs_restore,
)
from .tokens import token_create, token_find, tokens_revoke

__all__ = [
    "Launch",
    "RunContents",
    "Stale",
    "advice_config_save",
    "advice_sweep_save",
    "advice_trial_add",
    "attempt_lose",
    "attempt_report",
    "audit_add",
    "audit_forget",
    "cause_text",
    "comment_add",
    "comment_edit",
    "config_check",
    "config_launch",
    "config_save",
    "event_add",
    "experiment_clone",
    "experiment_create",
    "experiment_delete",
    "experiment_is_at_rest",
    "experiments_archive",
    "experiments_restore",
    "experiments_tag",
    "experiments_untag",
    "file_store",
    "find_code",
    "find_key",
    "finding_acknowledge",
    "finding_reopen",
    "findings_refresh",
    "first_cause",
    "groups_refresh",
    "key_used",
    "launch_store",
    "lock_attempt",
    "lock_members",
    "log_format_delete",
    "log_format_save",
    "login_failed",
    "login_succeeded",
    "login_wait_s",
    "node_code_create",
    "node_enrol",
    "node_key_rotate",
    "node_keys_revoke",
    "node_lost",
    "picture_add",
    "picture_delete",
    "picture_job_claim",
    "picture_job_end",
    "picture_job_note",
    "picture_jobs_stalled",
    "pictures_request",
    "published_run_add",
    "refused_store",
    "report_create",
    "report_delete",
    "report_editing",
    "report_link_create",
    "report_link_revoke",
    "report_publish",
    "report_save",
    "rotation_order",
    "run_cancel_request",
    "run_ended",
    "run_findings_refresh",
    "run_note_save",
    "run_relaunch",
    "runs_archive",
    "runs_contents",
    "runs_delete",
    "runs_restore",
    "runs_star",
    "runs_tag",
    "runs_unstar",
    "runs_untag",
    "schedule_save",
    "signing_key",
    "signing_keys",
    "summary_store",
    "token_create",
    "token_find",
    "tokens_revoke",
]
