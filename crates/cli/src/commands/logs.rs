//! `hodei logs`

use crate::{
    args::LogsArgs,
    client::{Client, explain},
    commands::follow,
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;

pub async fn logs(mut client: Client, args: LogsArgs, json: bool) -> Result<u8> {
    if args.follow {
        follow::logs(&mut client, &args.id, args.tail, |entries| output::print_entries(entries, json)).await?;
        return Ok(exit::OK);
    }
    let mut page_token = String::new();
    loop {
        let tail = args.tail.filter(|_| page_token.is_empty());
        let request = v1::GetLogsRequest { job_id: args.id.clone(), page_token, page_size: 10_000, tail };
        let page = client.logs().get_logs(request).await.map_err(|status| explain(&status))?.into_inner();
        output::print_entries(&page.entries, json);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(exit::OK);
        }
    }
}
